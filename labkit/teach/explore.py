"""A figure with sliders, that is a good static figure first: on GitHub, in print and in a batch run."""

import importlib.util

from ..errors import RequestError
from ..progress import notebook_shell


def explore(function, interactive: bool = True, **choices) -> None:
    """Draw `function` at its default choices; where a reader is present, add controls that draw it again below.

    Args:
        function: takes the choices by name; returns `(figure, alt)` or `(figure, alt, data)`, or None after `viz.show`.
        interactive: False in a batch run: the static figure only, and no widget state in the notebook.
        choices: per argument a list of values, the first being the default, or `(default, [values])`.

    Raises:
        RequestError: a choice has no values, its default is not among them, or the figure has no text alternative.

    Not for a function that takes more than about a second: a slider that lags teaches nothing."""
    options = {name: _options(name, choice) for name, choice in choices.items()}
    _draw(function, {name: default for name, (default, _) in options.items()})
    if interactive and _reader_is_present():
        from IPython.display import display

        display(controls(function, options))


def controls(function, options: dict[str, tuple]):
    """A box with one control per argument of `function` and, below them, the figure that they draw.

    `options` holds `(default, values)` per argument. Numbers get a slider over their values, anything else a menu."""
    import ipywidgets

    output, inputs = ipywidgets.Output(), {}
    for name, (default, values) in options.items():
        numbers = len(values) > 2 and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
        kind = ipywidgets.SelectionSlider if numbers else ipywidgets.Dropdown
        extra = {"continuous_update": False} if numbers else {}
        inputs[name] = kind(options=[(str(v), v) for v in values], value=default, description=name.replace("_", " "),
                            **extra)

    def redraw(_change):
        with output:
            output.clear_output(wait=True)
            _draw(function, {name: widget.value for name, widget in inputs.items()})

    for widget in inputs.values():
        widget.observe(redraw, names="value")
    return ipywidgets.VBox([*inputs.values(), output])


def _options(name: str, choice) -> tuple:
    if isinstance(choice, tuple) and len(choice) == 2 and isinstance(choice[1], (list, tuple)):
        default, values = choice[0], list(choice[1])
    else:
        values = list(choice) if isinstance(choice, (list, tuple)) else []
        default = values[0] if values else None
    if not values:
        raise RequestError(f"choice {name!r} needs a list of values, or (default, [values]); given: {choice!r}")
    if default not in values:
        raise RequestError(f"choice {name!r}: the default {default!r} is not among {values!r}")
    return default, values


def _draw(function, values: dict) -> None:
    from . import viz

    drawn = function(**values)
    if isinstance(drawn, tuple):
        viz.show(drawn[0], *drawn[1:])
    elif drawn is not None:
        raise RequestError(f"{function.__name__} returned a figure without a text alternative; return (figure, alt)")


def _reader_is_present() -> bool:
    # A frontend says with each request whether a person could answer a question; nbclient and papermill say no.
    shell = notebook_shell()
    if shell is None or importlib.util.find_spec("ipywidgets") is None:
        return False
    return bool(shell.get_parent().get("content", {}).get("allow_stdin", False))
