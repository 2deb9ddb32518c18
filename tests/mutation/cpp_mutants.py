# SPDX-License-Identifier: Apache-2.0
"""Finds where a fault can be planted in C++ sources, and plants many faults in one text.

A fault is an edit of the source that changes nothing until its number is chosen (switch.hpp). Edits are
insertions around whole expressions and statements, taken from clang's syntax tree, so that any number of them can
stand in one file, one inside the other. Lines stay where they are: a compiler's complaint leads back to the faults
of that line.
"""

import bisect
import ctypes
import dataclasses
import hashlib
import re
import zlib

from clang import cindex
from clang.cindex import CursorKind as Kind

COMPARISONS = {"<": ("less", "<="), "<=": ("less_equal", "<"), ">": ("greater", ">="), ">=": ("greater_equal", ">")}
EQUALITIES = {"==": ("equal", "!="), "!=": ("not_equal", "==")}
ARITHMETIC = {"+": ("plus", "-"), "-": ("minus", "+"), "*": ("times", "+"), "/": ("divide", "*"), "%": ("modulo", "+"),
              "&": ("bit_and", "|"), "|": ("bit_or", "&"), "<<": ("shift_left", ">>"), ">>": ("shift_right", "<<")}
ASSIGNMENTS = {"+=": ("add_to", "-="), "-=": ("subtract_from", "+="), "|=": ("or_into", "&="), "&=": ("and_into", "|=")}
# An operand that may be written twice: a name, a member, a getter.
SIMPLE = re.compile(r"\*?[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)*(?:\(\))?")
STATEMENTS = {Kind.COMPOUND_STMT, Kind.IF_STMT, Kind.FOR_STMT, Kind.WHILE_STMT, Kind.DO_STMT,
              Kind.CXX_FOR_RANGE_STMT, Kind.CASE_STMT, Kind.DEFAULT_STMT}
FUNCTIONS = {Kind.FUNCTION_DECL, Kind.CXX_METHOD, Kind.CONSTRUCTOR, Kind.DESTRUCTOR, Kind.FUNCTION_TEMPLATE,
             Kind.CONVERSION_FUNCTION}
CONSTANT = {Kind.STATIC_ASSERT, Kind.ENUM_DECL, Kind.ALIGNED_ATTR}


@dataclasses.dataclass
class Edit:
    """Text put around [begin, end), or, where `whole`, instead of it. Of several around one stretch, one that stands
    between its operands too is `innermost`."""
    begin: int
    end: int
    before: str
    after: str = ""
    whole: bool = False
    innermost: bool = False


@dataclasses.dataclass
class Mutant:
    file: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    edits: list
    id: str = ""
    number: int = 0

    def lines(self, newlines):
        """The lines that its edits touch."""
        return {bisect.bisect_left(newlines, at) + 1 for edit in self.edits for at in (edit.begin, edit.end - 1)}


class Finder:
    """Every fault of one file, from the tree of one translation unit that includes it."""

    def __init__(self, path, name, unit):
        self.name = name
        self.text = path.read_bytes()
        self.path = str(path)
        self.unit = unit
        self.newlines = [at for at, byte in enumerate(self.text) if byte == 10]
        self.mutants = []
        self.seen = set()

    def find(self):
        for cursor in self.unit.cursor.get_children():
            place = cursor.location.file
            if place is not None and place.name == self.path:
                self.visit(cursor, None, "", "")
        self.name_them()
        return self.mutants

    def name_them(self):
        """Ids that outlive edits elsewhere: no line numbers."""
        counts = {}
        for mutant in sorted(self.mutants, key=lambda each: each.edits[0].begin):
            key = "|".join((mutant.file, mutant.function, mutant.operator, f"{mutant.before} => {mutant.after}"))
            counts[key] = counts.get(key, 0) + 1
            mutant.id = key if counts[key] == 1 else f"{key}|{counts[key]}"
            mutant.number = 1 + zlib.crc32(hashlib.sha256(mutant.id.encode()).digest()) % ((1 << 20) - 1)
            for edit in mutant.edits:
                edit.before = edit.before.replace("$", f"{mutant.number}u")

    # --- Places in the text ------------------------------------------------------------------------------

    def span(self, cursor):
        """Where the cursor was written, macro arguments included; None where it was not written in this file."""
        places = []
        for location in (cursor.extent.start, cursor.extent.end):
            file, line, column, offset = (cindex.c_object_p(), ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint())
            cindex.conf.lib.clang_getFileLocation(location, ctypes.byref(file), ctypes.byref(line),
                                                  ctypes.byref(column), ctypes.byref(offset))
            if not file or cindex.File(file).name != self.path:
                return None
            places.append(offset.value)
        begin, end = places
        if begin >= end:
            return None
        text = self.text[begin:end]
        # The end of what a macro made lies at the macro's name.
        if text.count(b"(") != text.count(b")") or text.count(b"{") != text.count(b"}") or b"#" in text:
            return None
        return begin, end

    def words(self, begin, end):
        return " ".join(self.text[begin:end].decode(errors="replace").split())

    def add(self, operator, function, begin, end, after, *edits):
        """`after` may name the text that was there as @@; $ in an edit is the number to come."""
        before = self.words(begin, end)
        key = (operator, begin, end, after)
        if key in self.seen:
            return
        self.seen.add(key)
        self.mutants.append(Mutant(self.name, bisect.bisect_left(self.newlines, begin) + 1, function, operator,
                                   before[:160], after.replace("@@", before)[:160], list(edits)))

    def wrap(self, operator, function, cursor, call, after):
        span = self.span(cursor)
        if span:
            self.add(operator, function, *span, after, Edit(*span, f"::weir_mutants::{call}($,(", "))"))

    # --- The tree ----------------------------------------------------------------------------------------

    def visit(self, cursor, parent, function, role):
        kind = cursor.kind
        if kind in CONSTANT:
            return
        if kind in FUNCTIONS:
            function = cursor.spelling
            role = ""
        elif kind in (Kind.FIELD_DECL, Kind.PARM_DECL):
            role = "default"
        elif kind == Kind.LAMBDA_EXPR:
            role = ""
        children = list(cursor.get_children())
        self.look(cursor, children, parent, function, role)
        for index, child in enumerate(children):
            if kind == Kind.CASE_STMT and index == 0:
                continue  # a label is a constant
            self.visit(child, cursor, function, role)

    def look(self, cursor, children, parent, function, role):
        kind = cursor.kind
        if kind in STATEMENTS:
            # Of a loop's head, no part is a statement that could be left out.
            body = children[-1:] if kind in (Kind.FOR_STMT, Kind.CXX_FOR_RANGE_STMT) else children
            for child in body:
                self.statement(child, kind, function)
        if kind in (Kind.IF_STMT, Kind.WHILE_STMT):
            self.condition(cursor, children, function)
        elif kind == Kind.CONDITIONAL_OPERATOR and children:
            self.wrap("negated condition", function, children[0], "flip", "!(@@)")
        elif kind in (Kind.BINARY_OPERATOR, Kind.COMPOUND_ASSIGNMENT_OPERATOR) and len(children) == 2:
            self.binary(cursor, children, function)
        elif kind == Kind.CALL_EXPR:
            arguments = list(cursor.get_arguments())
            if cursor.spelling.startswith("operator") and len(arguments) == 2:
                self.binary(cursor, arguments, function)
            elif cursor.spelling not in ("min", "max"):  # the same either way round
                self.arguments(arguments, function)
        elif kind == Kind.INTEGER_LITERAL:
            self.literal(cursor, rb"\d[\da-fA-FxXuUlLzZ']*", "off by one", "next", "@@ + 1", function, role)
        elif kind == Kind.CXX_BOOL_LITERAL_EXPR:
            self.literal(cursor, rb"true|false", "wrong value", "flip", "!@@", function, role)
        elif kind == Kind.DECL_REF_EXPR and cursor.referenced is not None \
                and cursor.referenced.kind == Kind.ENUM_CONSTANT_DECL:
            self.enumerator(cursor, function, role)
        elif kind == Kind.MEMBER_REF_EXPR and cursor.referenced is not None \
                and cursor.referenced.kind == Kind.FIELD_DECL:
            self.field(cursor, function)
        elif kind == Kind.RETURN_STMT and children and self.is_bool(children[0]):
            self.wrap("wrong result", function, children[0], "flip", "!(@@)")

    @staticmethod
    def is_bool(cursor):
        return cursor.type.get_canonical().kind == cindex.TypeKind.BOOL

    def condition(self, cursor, children, function):
        conditions = [each for each in children if each.kind.is_expression()]
        if not conditions:
            return
        span = self.span(conditions[0])
        declared = [self.span(each) for each in children if each.kind in (Kind.VAR_DECL, Kind.DECL_STMT)]
        if span is None or any(each is None or each[0] <= span[0] < each[1] for each in declared):
            return  # the condition is a declaration, or a macro's
        self.wrap("negated condition", function, conditions[0], "flip", "!(@@)")
        if cursor.kind == Kind.IF_STMT:
            self.wrap("ignored condition", function, conditions[0], "never", "false")

    def binary(self, cursor, operands, function):
        spans = [self.span(cursor), self.span(operands[0]), self.span(operands[1])]
        if None in spans:
            return
        whole, left, right = spans
        if not whole[0] == left[0] < left[1] <= right[0] < right[1] == whole[1]:
            return
        between = self.text[left[1]:right[0]]
        sign = between.strip().decode(errors="replace")
        at = left[1] + between.index(sign.encode()) if sign else left[1]
        if sign in ("&&", "||"):
            drop = ("always", "true") if sign == "&&" else ("never", "false")
            for operand in operands:
                self.wrap("dropped operand", function, operand, drop[0], f"@@ -> {drop[1]}")
                self.wrap("negated operand", function, operand, "flip", "!(@@)")
            return
        for operator, table in (("boundary", COMPARISONS), ("equality", EQUALITIES), ("arithmetic", ARITHMETIC),
                                ("arithmetic", ASSIGNMENTS)):
            if sign not in table:
                continue
            if operator == "arithmetic" and not all(self.is_number(each) for each in operands):
                return
            call, other = table[sign]
            after = f"{self.words(*left)} {other} {self.words(*right)}"
            self.add(operator, function, *whole, after,
                     Edit(*whole, f"::weir_mutants::{call}($,(", "))", innermost=True),
                     Edit(at, at + len(sign), "),(", whole=True))

    @staticmethod
    def is_number(cursor):
        kind = cursor.type.get_canonical().kind
        return kind in (cindex.TypeKind.DEPENDENT, cindex.TypeKind.UNEXPOSED) or \
            cindex.TypeKind.BOOL.value <= kind.value <= cindex.TypeKind.LONGDOUBLE.value or \
            cursor.type.get_canonical().spelling.endswith("weir::bytes")

    def arguments(self, arguments, function):
        for first, second in zip(arguments, arguments[1:]):
            if first.type.get_canonical().spelling.removeprefix("const ") != \
                    second.type.get_canonical().spelling.removeprefix("const "):
                continue
            spans = self.span(first), self.span(second)
            if None in spans:
                continue
            texts = [self.words(*each) for each in spans]
            if texts[0] == texts[1] or not all(SIMPLE.fullmatch(each) for each in texts):
                continue
            edits = [Edit(*span, f"::weir_mutants::pick($,{mine},{other})", whole=True)
                     for span, mine, other in zip(spans, texts, reversed(texts))]
            self.add("swapped arguments", function, spans[0][0], spans[1][1], f"{texts[1]}, {texts[0]}", *edits)

    def literal(self, cursor, pattern, operator, call, after, function, role):
        span = self.span(cursor)
        if span and re.fullmatch(pattern, self.text[slice(*span)]):  # and no name of a macro
            self.wrap("wrong default" if role else operator, function, cursor, call, after)

    def enumerator(self, cursor, function, role):
        span = self.span(cursor)
        names = [each.spelling for each in cursor.referenced.semantic_parent.get_children()
                 if each.kind == Kind.ENUM_CONSTANT_DECL]
        name = cursor.spelling
        if span is None or name not in names or len(names) < 2:
            return
        text = self.words(*span)
        if not re.fullmatch(r"[\w:]+", text) or not text.endswith(name):
            return
        other = text[:-len(name)] + names[(names.index(name) + 1) % len(names)]
        self.add("wrong default" if role else "wrong value", function, *span, other,
                 Edit(*span, f"(::weir_mutants::on($)?{other}:{text})", whole=True))

    def field(self, cursor, function):
        span = self.span(cursor)
        field = cursor.referenced
        record = field.semantic_parent
        if span is None or record is None:
            return
        same = [each.spelling for each in record.get_children() if each.kind == Kind.FIELD_DECL
                and each.type.get_canonical().spelling == field.type.get_canonical().spelling]
        text = self.words(*span)
        if len(same) < 2 or not SIMPLE.fullmatch(text) or not text.endswith(field.spelling):
            return
        other = text[:-len(field.spelling)] + same[(same.index(field.spelling) + 1) % len(same)]
        self.add("wrong field", function, *span, other,
                 Edit(*span, f"(::weir_mutants::on($)?{other}:{text})", whole=True))

    def statement(self, cursor, kind, function):
        """One that can be left out: a call, an assignment, a jump."""
        jump = cursor.kind in (Kind.BREAK_STMT, Kind.CONTINUE_STMT)
        if not jump and not cursor.kind.is_expression():
            return self.try_macro(cursor, function)
        if kind in (Kind.CASE_STMT, Kind.DEFAULT_STMT) and jump:
            return None
        span = self.span(cursor)
        if span is None:
            return None
        return self.drop(span, function)

    def try_macro(self, cursor, function):
        """WEIR_TRY(...), which is a statement of its own."""
        begin = cursor.extent.start
        if begin.file is None or begin.file.name != self.path:
            return
        match = re.compile(rb"(?:WEIR_TRY|WEIR_NEEDS)\(").match(self.text, begin.offset)
        if match:
            depth, at = 1, match.end()
            while depth and at < len(self.text):
                depth += {40: 1, 41: -1}.get(self.text[at], 0)
                at += 1
            self.drop((begin.offset, at), function)

    def drop(self, span, function):
        end = re.compile(rb"\s*;").match(self.text, span[1])
        if not end:
            return  # part of a larger statement: the condition of a loop
        words = self.words(*span)
        if words.startswith(("(void)", "static_cast<void>")):
            return
        self.add("dropped statement", function, span[0], end.end(), "",
                 Edit(span[0], end.end(), "{if(!::weir_mutants::on($))", "}"))


def fits(mutant, edits):
    """Whether the edits can stand beside those that are chosen: what is written anew holds no other edit."""
    for one in mutant.edits:
        for other in edits:
            apart = one.end <= other.begin or other.end <= one.begin
            inner, outer = (one, other) if one.end - one.begin <= other.end - other.begin else (other, one)
            inside = outer.begin <= inner.begin and inner.end <= outer.end
            if not apart and (not inside or outer.whole or (inner.whole and inner.end - inner.begin
                                                              == outer.end - outer.begin and outer.whole)):
                return False
    return True


def plant(text, mutants):
    """The text with the faults of `mutants` in it."""
    edits = [edit for mutant in mutants for edit in mutant.edits]
    around = [(edit, order) for order, edit in enumerate(edits) if not edit.whole]
    opens, closes, anew = {}, {}, {}
    for edit, order in around:
        opens.setdefault(edit.begin, []).append((edit.begin - edit.end, edit.innermost, order, edit.before))
        closes.setdefault(edit.end, []).append((edit.end - edit.begin, not edit.innermost, -order, edit.after))
    for edit in edits:
        if edit.whole:
            anew[edit.begin] = edit
    out, at = [], 0
    for place in sorted({*opens, *closes, *anew}):
        out.append(text[at:place])
        at = max(at, place)
        out += [each[-1].encode() for each in sorted(closes.get(place, []))]
        out += [each[-1].encode() for each in sorted(opens.get(place, []))]
        if place in anew:
            edit = anew[place]
            # Lines stay where they are.
            out.append(edit.before.encode() + b"\n" * text[edit.begin:edit.end].count(b"\n"))
            at = edit.end
    out.append(text[at:])
    return b"".join(out)
