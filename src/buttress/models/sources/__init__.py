"""Where models come from: one file per way to name one, each registered in `core.SOURCES`."""

from buttress.models.sources.core import is_function as is_function
