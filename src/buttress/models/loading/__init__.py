"""Model sources: one file per kind, each registered in `core.SOURCES`."""

from buttress.models.loading.core import is_function_name as is_function_name
