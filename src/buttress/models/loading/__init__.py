"""Where models come from: one file per kind of source, each registered in `core.SOURCES`."""

from buttress.models.loading.core import is_function_name as is_function_name
