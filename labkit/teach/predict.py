"""Predict before you run: the reader commits to an answer, then sees it beside the measurement."""

import math
from dataclasses import dataclass

from ..errors import RequestError
from .exercises import say


@dataclass(frozen=True)
class Prediction:
    """A reader's answer; `answer` is None while there is none. `options` is empty for a number, which is in `unit`."""

    question_id: str
    question: str
    options: tuple[str, ...] = ()
    unit: str = ""
    answer: str | float | None = None

    def compare(self, measured, text: str = "") -> None:
        """Show the prediction beside what was measured, with `text` as the explanation.

        A number is judged by its factor and `log_error`, an option by being the measured one."""
        result = self._shown(measured)
        if self.answer is None:
            line = f"measured {result}; you made no prediction"
        elif self.options:
            verdict = "as you predicted" if self.answer == str(measured) else "not as you predicted"
            line = f"you predicted {self._shown(self.answer)}; measured {result}: {verdict}"
        elif self.answer > 0 and measured > 0 and self.unit != "points":  # which are differences
            error = self.log_error(measured)
            line = (f"you predicted {self._shown(self.answer)}; measured {result}: "
                    f"off by a factor of {10**error:.3g} (log10 error {error:.2f})")
        else:
            line = (f"you predicted {self._shown(self.answer)}; measured {result}: "
                    f"off by {abs(self.answer - measured):.3g}")
        say(f"{self.question_id}: {line}." + (f" {text}" if text else ""))

    def log_error(self, measured: float) -> float:
        """|log10(prediction / measured)|: 0 is exact, 1 is a factor of ten either way; infinite while unanswered.

        Raises:
            RequestError: the answer is an option, or one of the two is not positive."""
        if self.options or measured <= 0 or (self.answer is not None and self.answer <= 0):
            raise RequestError(f"{self.question_id}: a log error needs two positive numbers")
        return math.inf if self.answer is None else abs(math.log10(self.answer / measured))

    def _shown(self, value) -> str:
        if self.options or isinstance(value, str):
            return str(value)
        return f"{value:.4g} {self.unit}".rstrip()

    def _ipython_display_(self) -> None:
        """Show nothing when a cell ends with the prediction: the cell has shown it already."""


def predict(question_id: str, question: str, options, answer=None, lab=None, *, low=-math.inf,
            high=math.inf) -> Prediction:
    """Ask for a prediction. The reader's cell holds `answer = None`; filling it in answers the question.

    Args:
        question_id: for example `07.p1`.
        question: one sentence.
        options: the allowed answers, or, for a number, its unit as a text (`""` for a plain number).
        answer: None (or `...`) while not answered: that prints "not answered yet" and raises nothing. So does an
            answer that is none of the options, no finite number, or outside `low` to `high`: a slip of the pen must not
            stop the notebook.
        lab: if given, `lab.keep(question_id, answer)` puts the answer in the record."""
    unit = options if isinstance(options, str) else ""
    allowed = () if isinstance(options, str) else tuple(str(option) for option in options)
    given, problem = None, ""
    if answer is not None and answer is not ...:
        try:
            given = _valid(question_id, answer, allowed, low, high)
        except RequestError as error:
            problem = f"{error}; "
    prediction = Prediction(question_id, question, allowed, unit, given)
    form = "one of: " + ", ".join(allowed) if allowed else f"a number{f' ({unit})' if unit else ''}{_range(low, high)}"
    if given is None:
        state = f"{problem}not answered yet: put your answer ({form}) in place of None and run this cell again"
    else:
        state = f"your prediction: {prediction._shown(given)}"
        if lab is not None:
            lab.keep(question_id, given)
    say(f"**Predict {question_id}.** {question}\n\n{state}", f"Predict {question_id}. {question}\n{state}")
    return prediction


def _range(low: float, high: float) -> str:
    if math.isfinite(high):
        return f" from {low:g} to {high:g}"
    return f" of {low:g} or more" if math.isfinite(low) else ""


def _valid(question_id: str, answer, allowed: tuple[str, ...], low: float, high: float):
    if allowed:
        folded = {option.strip().casefold(): option for option in allowed}
        option = folded.get(str(answer).strip().casefold())
        if option is None:
            raise RequestError(f"{question_id}: answer {answer!r} is none of: {', '.join(allowed)}")
        return option
    try:
        number = math.nan if isinstance(answer, bool) else float(answer)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RequestError(f"{question_id}: answer {answer!r} is not a finite number")
    if not low <= number <= high:
        raise RequestError(f"{question_id}: answer {answer!r} is not a number{_range(low, high)}")
    return number
