"""Call of model factories with checked options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from buttress.errors import UserError

Shape = Mapping[str, int]  # num_classes, image_size, in_channels


def call_factory(
    name: str, factory: Callable[..., Any], shape: Shape, options: Mapping[str, Any]
) -> Any:
    """Call a factory with the shape arguments it takes and type-checked options."""
    parameters = inspect.signature(factory).parameters
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    parameters_by_name = {
        n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    option_names = [n for n in parameters_by_name if n not in shape]
    for option in options:
        if option in shape or not (accepts_any or option in parameters_by_name):
            known = ", ".join(option_names)
            available = f"available options: {known}" if known else "it has no options"
            raise UserError(f"model {name!r} has no option {option!r}; {available}")
    for option in option_names:
        parameter = parameters_by_name[option]
        if parameter.default is parameter.empty and option not in options:
            raise UserError(f"model {name!r} requires the option {option!r}")
    hints = _type_hints(factory) if options else {}
    values = {n: _validate_option(name, n, v, hints.get(n, Any)) for n, v in options.items()}
    return factory(**{n: v for n, v in shape.items() if n in parameters_by_name}, **values)


def _type_hints(factory: Callable[..., Any]) -> dict[str, Any]:
    function = vars(factory).get("__init__", factory) if isinstance(factory, type) else factory
    try:
        return get_type_hints(function)
    except NameError:  # names that a user's file imports for type checkers only
        return {}


def _validate_option(name: str, option: str, value: Any, hint: Any) -> Any:
    try:
        return TypeAdapter(hint).validate_python(value)
    except PydanticSchemaGenerationError:  # a class of the user's own
        return value
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UserError(f"option {option!r} of model {name!r}: {reason} (got {value!r})") from None
