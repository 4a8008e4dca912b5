"""A job's sampler by name, or by import path from a module that the operator allows."""

from importlib import import_module

from headrace.core.buffer import SAMPLERS, Sampler


class SamplerRefused(Exception):
    """The sampler cannot be used; the message says why and what would help."""


def sampler_of(name: str, allowed_modules: str) -> Sampler:
    """The sampler object; a class is made without arguments. Raises SamplerRefused."""
    if name in SAMPLERS:
        return SAMPLERS[name]
    module_name, _, attribute = name.partition(":")
    allowed = [module.strip() for module in allowed_modules.split(",") if module.strip()]
    if module_name not in allowed:
        raise SamplerRefused(
            f"samplers of {module_name} are not allowed here; the operator sets HEADRACE_SAMPLER_MODULES, or use "
            f"one of {', '.join(SAMPLERS)}"
        )
    try:
        made: Sampler = getattr(import_module(module_name), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise SamplerRefused(f"{name} cannot be loaded: {error}") from error
    if not callable(getattr(made, "order", None)):
        raise SamplerRefused(f"{name} has no method `order`")
    return made
