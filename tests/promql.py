# SPDX-License-Identifier: GPL-2.0-only
"""Parse, check and evaluate the part of PromQL that the alerts and the dashboard use.

Prometheus itself takes a third of a gigabyte, which is too much for a test that asks whether a
metric exists. Unsupported syntax is an error, never a guess. Unlike in Prometheus, rates are not
extrapolated to the edges of their range; a threshold for which that matters is badly chosen.
Grammar: https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Sample = tuple[float, float]
"""A time in seconds, and a value."""
Series = Mapping[tuple[str, Labels], Sequence[Sample]]

STALE_S = 300
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TOKEN = re.compile(
    r"\s*(?:(?P<duration>\d+[smhd])|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    r'|(?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<string>"[^"\\]*")'
    r"|(?P<op>=~|!~|==|!=|>=|<=|[-+*/%(){}\[\],=<>]))"
)
_LEVELS = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/"))
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}
AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "count": lambda values: float(len(values)),
    "avg": lambda values: sum(values) / len(values),
}
OF_COUNTERS = {"rate", "increase"}
OF_RANGES = OF_COUNTERS | {"changes", "max_over_time"}


class PromqlError(ValueError):
    """The expression is wrong or not supported here."""


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class Selector:
    name: str
    matchers: tuple[tuple[str, str, str], ...]  # label, operator, value
    range_s: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    argument: Expression


@dataclass(frozen=True, slots=True)
class Aggregate:
    function: str
    argument: Expression
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Expression
    right: Expression
    on: tuple[str, ...] | None = None
    group_left: bool = False


Expression = Number | Selector | Call | Aggregate | Binary


# ---- parsing


@dataclass(slots=True)
class _Parser:
    text: str
    tokens: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        at, text = 0, self.text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise PromqlError(f"{text[at : at + 20]!r} is not understood")
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()
        self.tokens.append(("end", ""))

    def take(self, *wanted: str) -> str:
        """Consume the next token and return it if it is one of these texts; else return ""."""
        if self.tokens[0][1] in wanted and self.tokens[0][0] != "string":
            return self.tokens.pop(0)[1]
        return ""

    def need(self, *wanted: str) -> str:
        found = self.take(*wanted)
        if not found:
            raise PromqlError(f"{self.tokens[0][1]!r} where {wanted} should be: {self.text}")
        return found

    def kind(self, kind: str) -> str:
        if self.tokens[0][0] != kind:
            raise PromqlError(f"{self.tokens[0][1]!r} is no {kind}: {self.text}")
        return self.tokens.pop(0)[1]

    def names(self) -> tuple[str, ...]:
        self.need("(")
        found = [self.kind("word")]
        while self.take(","):
            found.append(self.kind("word"))
        self.need(")")
        return tuple(found)

    def expression(self, level: int = 0) -> Expression:
        if level == len(_LEVELS):
            return self.operand()
        left = self.expression(level + 1)
        while operator := self.take(*_LEVELS[level]):
            on = self.names() if self.take("on") else None
            group_left = bool(self.take("group_left"))
            left = Binary(operator, left, self.expression(level + 1), on, group_left)
        return left

    def operand(self) -> Expression:
        kind, text = self.tokens[0]
        if kind == "number":
            return Number(float(self.kind("number")))
        if self.take("("):
            inside = self.expression()
            self.need(")")
            return inside
        name = self.kind("word")
        if text in AGGREGATES:
            by = self.names() if self.take("by") else ()
            self.need("(")
            argument = self.expression()
            self.need(")")
            return Aggregate(name, argument, by)
        if self.take("("):
            if name not in OF_RANGES:
                raise PromqlError(f"function {name} is not understood: {self.text}")
            argument = self.expression()
            self.need(")")
            if not isinstance(argument, Selector) or not argument.range_s:
                raise PromqlError(f"{name} needs a range: {self.text}")
            return Call(name, argument)
        return self.selector(name)

    def selector(self, name: str) -> Selector:
        matchers = []
        if self.take("{"):
            while not self.take("}"):
                label, operator = self.kind("word"), self.need("=", "!=", "=~", "!~")
                matchers.append((label, operator, self.kind("string")[1:-1]))
                if not self.take(","):
                    self.need("}")
                    break
        range_s = 0
        if self.take("["):
            text = self.kind("duration")
            range_s = int(text[:-1]) * _UNITS[text[-1]]
            self.need("]")
        return Selector(name, tuple(matchers), range_s)


def parse(text: str) -> Expression:
    """Return the parsed expression. Raises PromqlError if it is wrong or not supported."""
    parser = _Parser(text)
    found = parser.expression()
    if parser.tokens[0][0] != "end":
        raise PromqlError(f"{parser.tokens[0][1]!r} is left over: {text}")
    return found


def duration_s(text: str) -> int:
    """Return the seconds of a duration such as 5m in a rule."""
    return int(text[:-1]) * _UNITS[text[-1]]


# ---- checking


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its kind, its labels, and the possible values of some labels."""

    kind: str
    labels: frozenset[str]
    values: Mapping[str, frozenset[str]]


def check(expression: Expression, known: Mapping[str, Metric]) -> frozenset[str]:
    """Return the labels of the result. Raises PromqlError for anything that `known` lacks."""
    match expression:
        case Number():
            return frozenset()
        case Selector():
            return _check_selector(expression, known, counter=False)
        case Call(function, Selector() as argument):
            return _check_selector(argument, known, counter=function in OF_COUNTERS)
        case Aggregate(_, argument, by):
            if missing := set(by) - check(argument, known):
                raise PromqlError(f"nothing to aggregate by: {sorted(missing)}")
            return frozenset(by)
        case Binary(operator, left, right, on, group_left):
            return _check_binary(operator, check(left, known), check(right, known), on, group_left)
    raise PromqlError(f"{expression} is not understood")


def _check_selector(
    selector: Selector, known: Mapping[str, Metric], *, counter: bool
) -> frozenset[str]:
    metric = known.get(selector.name)
    if metric is None:
        raise PromqlError(f"there is no metric {selector.name}")
    if counter != (metric.kind == "counter"):
        raise PromqlError(f"{selector.name} is a {metric.kind}")
    for label, operator, value in selector.matchers:
        if label not in metric.labels:
            raise PromqlError(f"{selector.name} has no label {label}")
        listed = metric.values.get(label)
        wanted = value.split("|") if operator in ("=~", "!~") else [value]
        if listed is not None and not all(
            any(re.fullmatch(each, one) for one in listed) for each in wanted
        ):
            raise PromqlError(f"{selector.name}: {label} is never {value}")
    return metric.labels


def _check_binary(
    operator: str,
    left: frozenset[str],
    right: frozenset[str],
    on: tuple[str, ...] | None,
    group_left: bool,
) -> frozenset[str]:
    if not right or not left:  # a number, or a sum without labels
        return left or right
    if on is None and left != right:
        raise PromqlError(f"{sorted(left)} {operator} {sorted(right)} never match without on()")
    if on is not None and (missing := set(on) - (left & right)):
        raise PromqlError(f"{operator} on {sorted(missing)}, which both sides do not have")
    many_to_one = on is not None and set(on) != left
    if many_to_one and not group_left and operator not in ("and", "or", "unless"):
        raise PromqlError(f"{operator} on {on}: many to one needs group_left")
    if on is not None and set(on) != right and operator not in ("and", "or", "unless"):
        raise PromqlError(f"{operator} on {on}: the right side may have several")
    return left


# ---- evaluating


def evaluate(expression: Expression, series: Series, at_s: float) -> Vector | float:
    """Return the value at a time; `series` are by name and labels, with the oldest sample first."""
    match expression:
        case Number(value):
            return value
        case Selector():
            found: Vector = {}
            for (name, labels), samples in series.items():
                recent = [v for t, v in samples if at_s - STALE_S < t <= at_s]
                if recent and _matches(expression, name, labels):
                    found[labels] = recent[-1]
            return found
        case Call(function, Selector() as argument):
            return _call(function, argument, series, at_s)
        case Aggregate(function, argument, by):
            groups: dict[Labels, list[float]] = {}
            for labels, value in _vector(evaluate(argument, series, at_s)).items():
                groups.setdefault(_only(labels, by), []).append(value)
            return {labels: AGGREGATES[function](values) for labels, values in groups.items()}
        case Binary(operator, left, right, on, _):
            return _binary(
                operator, evaluate(left, series, at_s), evaluate(right, series, at_s), on
            )
    raise PromqlError(f"{expression} is not understood")


def _matches(selector: Selector, name: str, labels: Labels) -> bool:
    if name != selector.name:
        return False
    have = dict(labels)
    for label, operator, value in selector.matchers:
        one = have.get(label, "")
        hit = one == value if operator in ("=", "!=") else bool(re.fullmatch(value, one))
        if hit != (operator in ("=", "=~")):
            return False
    return True


def _call(function: str, selector: Selector, series: Series, at_s: float) -> Vector:
    found: Vector = {}
    for (name, labels), samples in series.items():
        inside = [(t, v) for t, v in samples if at_s - selector.range_s < t <= at_s]
        if len(inside) < 2 or not _matches(selector, name, labels):
            continue
        steps = list(zip([v for _, v in inside], [v for _, v in inside[1:]], strict=False))
        increase = sum(b - a if b >= a else b for a, b in steps)
        found[labels] = {
            "increase": increase,
            "rate": increase / (inside[-1][0] - inside[0][0]),
            "changes": sum(a != b for a, b in steps),
            "max_over_time": max(v for _, v in inside),
        }[function]
    return found


def _only(labels: Labels, names: tuple[str, ...]) -> Labels:
    return frozenset((name, value) for name, value in labels if name in names)


def _vector(value: Vector | float) -> Vector:
    if not isinstance(value, dict):
        raise PromqlError("a vector is needed")
    return value


def _binary(
    operator: str, left: Vector | float, right: Vector | float, on: tuple[str, ...] | None
) -> Vector | float:
    if not isinstance(left, dict):
        if not isinstance(right, dict):
            return _arithmetic(operator, left, right)
        return {labels: _arithmetic(operator, left, value) for labels, value in right.items()}
    if not isinstance(right, dict):
        return _each(operator, {labels: (value, right) for labels, value in left.items()})

    def key(labels: Labels) -> Labels:
        return labels if on is None else _only(labels, on)

    others = {key(labels): value for labels, value in right.items()}
    if operator == "and":
        return {labels: value for labels, value in left.items() if key(labels) in others}
    if operator == "unless":
        return {labels: value for labels, value in left.items() if key(labels) not in others}
    if operator == "or":
        mine = {key(labels) for labels in left}
        return left | {labels: v for labels, v in right.items() if key(labels) not in mine}
    if len(others) != len(right):
        raise PromqlError(f"{operator}: several on the right have the same labels")
    return _each(
        operator,
        {
            labels: (value, others[key(labels)])
            for labels, value in left.items()
            if key(labels) in others
        },
    )


def _each(operator: str, pairs: Mapping[Labels, tuple[float, float]]) -> Vector:
    if operator in _COMPARISONS:
        holds = _COMPARISONS[operator]
        return {labels: a for labels, (a, b) in pairs.items() if holds(a, b)}
    return {labels: _arithmetic(operator, a, b) for labels, (a, b) in pairs.items()}


def _arithmetic(operator: str, a: float, b: float) -> float:
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return a / b if b else float("nan") if not a else float("inf")
    raise PromqlError(f"{operator} between numbers is not understood")
