"""Small faults that can be planted in a Python source, found in its syntax tree.

Each is a piece of the text and what to write in its place, so that everything else, comments and layout
too, stays as it was.
"""

import ast
import hashlib
import re
from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

BOUNDARIES = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
EQUALITIES = {ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
              ast.IsNot: (r"is\s+not", "is"), ast.In: ("in", "not in"), ast.NotIn: (r"not\s+in", "in")}
ARITHMETIC = {ast.Add: (r"\+", "-"), ast.Sub: ("-", "+"), ast.Mult: (r"\*", "//"), ast.Div: ("/", "*"),
              ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.Pow: (r"\*\*", "*"),
              ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitOr: (r"\|", "&"),
              ast.BitAnd: ("&", "|")}


@dataclass(frozen=True)
class Mutant:
    id: str        #: stays while its function's text does: no line numbers
    file: str
    line: int
    operator: str
    before: str
    after: str
    begin: int     #: of the replaced bytes
    end: int
    lines: FrozenSet[int]  #: of its statement: whoever runs one of them runs it

    def plant(self, source: bytes) -> bytes:
        return source[:self.begin] + self.after.encode() + source[self.end:]


def mutants_of(file: str, source: bytes) -> List[Mutant]:
    """Every fault of a source, in the order of the text."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    counts: Dict[str, int] = {}
    out = []
    for fault in sorted(finder.found, key=lambda fault: (fault[0], fault[1], fault[2])):
        begin, end, operator, after, scope, lines = fault
        before = source[begin:end].decode()
        name = f"{file}:{scope}:{operator}:{_one_line(before)} -> {_one_line(after)}"
        counts[name] = counts.get(name, -1) + 1
        out.append(Mutant(f"{name}:{counts[name]}", file, source[:begin].count(b"\n") + 1, operator, before,
                          after, begin, end, lines))
    return out


def _one_line(text: str) -> str:
    """For a name: on one line, and not too long."""
    line = re.sub(r"\s+", " ", text)
    return line if len(line) <= 100 else f"{line[:80]}…{hashlib.sha256(line.encode()).hexdigest()[:8]}"


def _is_text(node: ast.AST) -> bool:
    """Sums of texts: a minus there is no fault that anybody makes."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant)
                                               and isinstance(node.value, (str, bytes)))


def _is_simple(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_simple(node.value))


def _is_number(node: Optional[ast.AST]) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


class _Finder(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.found: List[Tuple[int, int, str, str, str, FrozenSet[int]]] = []
        self.line_starts = [0] + [match.end() for match in re.finditer(b"\n", source)]
        self.scope: List[str] = []
        self.in_function = False
        self.fields: List[List[str]] = []  # of the classes around
        self.lines: FrozenSet[int] = frozenset()

    # --- Text -------------------------------------------------------------------------------------

    def begin(self, node: ast.AST) -> int:
        return self.line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.line_starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        return self.source[self.begin(node):self.end(node)].decode()

    def add(self, node: ast.AST, operator: str, after: str) -> None:
        lines = self.lines | frozenset(range(node.lineno, node.end_lineno + 1))
        self.found.append((self.begin(node), self.end(node), operator, after,
                           ".".join(filter(None, self.scope)), lines))

    def add_between(self, node: ast.AST, left: ast.AST, right: ast.AST, operator: str,
                    change: Tuple[str, str]) -> None:
        """Another sign between two operands; the tree does not say where the sign stands."""
        gap = self.source[self.end(left):self.begin(right)].decode()
        changed = re.sub(change[0], change[1], gap, count=1)
        self.add(node, operator, self.source[self.begin(node):self.end(left)].decode() + changed
                 + self.source[self.begin(right):self.end(node)].decode())

    def in_brackets(self, node: ast.AST) -> str:
        bare = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Constant)) and (
            node.lineno == node.end_lineno)
        return self.text(node) if bare else f"({self.text(node)})"

    # --- Where we are -----------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            # Of a statement with a body, the lines of its head.
            last = node.end_lineno
            if getattr(node, "body", None):
                last = max(node.lineno, node.body[0].lineno - 1)
            self.lines = frozenset(range(node.lineno, last + 1))
        super().visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        names = [each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
                 and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name)
                 and each.value.id == "self"]
        self.fields.append(sorted(set(names)))
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()
        self.fields.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outside, self.in_function = self.in_function, True
        self.scope.append(node.name)
        arguments = node.args
        positional = arguments.posonlyargs + arguments.args
        pairs = list(zip(positional[len(positional) - len(arguments.defaults):], arguments.defaults))
        for argument, default in pairs + list(zip(arguments.kwonlyargs, arguments.kw_defaults)):
            self.default(argument, default)
        for each in node.decorator_list + node.body:  # and no annotations
            self.visit(each)
        self.scope.pop()
        self.in_function = outside

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assignment(node, [node.target])
            self.scope.append(self.name_of(node.target))
            self.visit(node.target)
            self.visit(node.value)
            self.scope.pop()

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass  # before Python 3.12 the tree does not know where its parts stand

    def name_of(self, target: ast.AST) -> str:
        """Of a constant or a member: it tells apart what stands in long lists of them."""
        return target.id if isinstance(target, ast.Name) and not self.in_function else ""

    # --- Faults -----------------------------------------------------------------------------------

    def default(self, argument: ast.arg, node: Optional[ast.AST]) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            self.add(node, "default", str(not node.value))
        elif _is_number(node):
            self.add(node, "default", str(node.value + 1))
        elif isinstance(node, ast.Constant) and node.value is None and argument.annotation is not None:
            if re.fullmatch(r"Optional\[(int|float)\]", self.text(argument.annotation)):
                self.add(node, "default", "0")

    def condition(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in EQUALITIES:
            return  # the same as the opposite comparison
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.add(node, "negate", self.in_brackets(node.operand))
        else:
            self.add(node, "negate", f"(not {self.in_brackets(node)})")

    def visit_If(self, node: ast.If) -> None:
        self.condition(node.test)
        self.generic_visit(node)

    visit_While = visit_Assert = visit_IfExp = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for each in node.ifs:
            self.condition(each)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " and " if isinstance(node.op, ast.And) else " or "
        for dropped in range(len(node.values)):
            kept = [self.in_brackets(each) for number, each in enumerate(node.values) if number != dropped]
            self.add(node, "drop_operand", kept[0] if len(kept) == 1 else f"({word.join(kept)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, sign, right in zip(operands, node.ops, operands[1:]):
            for operator, changes in (("boundary", BOUNDARIES), ("equality", EQUALITIES)):
                if type(sign) in changes:
                    self.add_between(node, left, right, operator, changes[type(sign)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC and not _is_text(node):
            self.add_between(node, node.left, node.right, "arithmetic", ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, "boolean", str(not node.value))
        elif _is_number(node):
            self.add(node, "constant", str(node.value + 1))
            less = node.value - 1
            self.add(node, "constant", str(less) if less >= 0 else f"({less})")

    def swap(self, node: ast.AST, parts: Sequence[ast.AST], operator: str) -> None:
        for left, right in zip(parts, parts[1:]):
            if self.text(left) != self.text(right):
                piece = [self.source[begin:end].decode() for begin, end in (
                    (self.begin(node), self.begin(left)), (self.end(left), self.begin(right)),
                    (self.end(right), self.end(node)))]
                self.add(node, operator, piece[0] + self.text(right) + piece[1] + self.text(left) + piece[2])

    def visit_Call(self, node: ast.Call) -> None:
        for pair in zip(node.args, node.args[1:]):
            if all(_is_simple(each) for each in pair):
                self.swap(node, pair, "swap_arguments")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "drop_statement", "pass")
        self.generic_visit(node)

    def assignment(self, node: ast.stmt, targets: List[ast.AST]) -> None:
        """Of locals nothing is dropped: Python itself would say that they are missing."""
        parts = [part for target in targets for part in getattr(target, "elts", [target])]
        if any(isinstance(part, (ast.Attribute, ast.Subscript)) for part in parts):
            self.add(node, "drop_statement", "pass")

    def visit_Assign(self, node: ast.Assign) -> None:
        self.assignment(node, node.targets)
        self.scope.append(self.name_of(node.targets[0]))
        self.generic_visit(node)
        self.scope.pop()

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "drop_statement", "pass")
        if type(node.op) in ARITHMETIC and not _is_text(node.value):
            sign, other = ARITHMETIC[type(node.op)]
            self.add_between(node, node.target, node.value, "arithmetic", (sign, other))
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "ignore_error", "pass")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and node.value.id == "self"
                and self.fields and node.attr in self.fields[-1] and len(self.fields[-1]) > 1):
            fields = self.fields[-1]
            other = fields[(fields.index(node.attr) + 1) % len(fields)]
            self.add(node, "wrong_field", f"self.{other}")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Tuple) and not any(isinstance(each, ast.Starred)
                                                         for each in node.value.elts):
            self.swap(node.value, node.value.elts, "swap_returned")
        self.generic_visit(node)
