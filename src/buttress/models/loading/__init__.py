"""Model sources: one file per kind, each registered in `core.SOURCES`."""
