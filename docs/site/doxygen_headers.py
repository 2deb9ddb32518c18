# SPDX-License-Identifier: Apache-2.0
"""The headers as doxygen should read them: copies, changed by the rules below.

The headers are written for readers of the headers, by rules that doxygen does not know:

- One comment covers the declarations that follow it without an empty line.
- In C, a plain comment before a declaration documents it, and one behind a member documents that member.
- Members that the language defines (copy, move, destroy, compare, defaulted and deleted ones) do what the class says.
- weir/driver/types.hpp declares what cuda.h declares.
"""

import re

SPECIAL = re.compile(r"^\s*(?:\[\[nodiscard\]\] |WEIR_API |constexpr |explicit |virtual |inline |friend |auto |bool |"
                     r"(?P<result>\w+(?:<[^()]*>)?&) )*"
                     r"(?:~\w+\(\)|(?P<name>\w+)\((?:const )?(?P=name)(?:<[^()]*>)?&&?(?: \w+)?\)|operator=\([^)]*\)|operator(?:==|!=|<=>|<|>|<=|>=)\()")
DEFAULTED = re.compile(r"= (?:default|delete);\s*$")


def is_comment(line):
    return line.lstrip().startswith(("///", "/**", "//", "/*"))


def is_boundary(line):
    stripped = line.strip()
    return (not stripped or stripped.startswith(("///", "//", "/*", "}", "#", "public:", "private:", "protected:", "namespace"))
            or stripped.startswith("extern"))


def ends_block(lines, start):
    """The first line behind the declarations that begin at `start`, and how many there are."""
    depth, count, here = 0, 0, start
    while here < len(lines):
        line = lines[here]
        if depth == 0 and is_boundary(line):
            break
        code = re.sub(r'"[^"]*"|//.*|/\*.*?\*/', "", line)
        depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")
        if depth == 0 and code.rstrip().endswith((";", "}", ",")):
            count += 1
        here += 1
    return here, count


def opens_scope(line):
    return re.match(r"\s*(?:template\b.*|typedef )?(?:struct|class|enum|union|namespace)\b[^;]*\{\s*$", line) is not None


def grouped(lines):
    """The lines, with each comment that covers several declarations marked as theirs."""
    out, here = [], 0
    while here < len(lines):
        line = lines[here]
        if line.lstrip().startswith(("///", "/**")) and "@{" not in line:
            first = here
            while here < len(lines) and (lines[here].lstrip().startswith("///") or
                                         (lines[first].lstrip().startswith("/**") and not any("*/" in each for each in lines[first:here]))):
                here += 1
            comment = lines[first:here]
            end, count = ends_block(lines, here) if here < len(lines) else (here, 0)
            opened = any(opens_scope(each) for each in lines[here:end])
            if count > 1 and not opened:
                indent = " " * (len(line) - len(line.lstrip()))
                out += [f"{indent}///@{{", *comment, *lines[here:end], f"{indent}///@}}"]
                here = end
            else:
                out += comment
            continue
        out.append(line)
        here += 1
    return out


def with_special_members(lines):
    out = []
    for line in lines:
        covered = out and (out[-1].lstrip().startswith("///") and not out[-1].strip() in ("///@{", "///@}"))
        if (SPECIAL.match(line) or DEFAULTED.search(line)) and not covered and "using" not in line:
            out.append(" " * (len(line) - len(line.lstrip())) + "/// As the class says.")
        out.append(line)
    return out


def from_c(text):
    """Comments of C as those of doxygen."""
    text = re.sub(r"^(\s*)/\* (?!-|NOLINT|SPDX)", r"\1/** ", text, flags=re.M)
    return re.sub(r"(;|,|\}) +/\* ", r"\1 /**< ", text)


def as_in_cuda(lines):
    out = []
    for line in lines:
        named = re.match(r"\s*(?:[A-Za-z_].*[;,]|[A-Z_a-z0-9]+ = .*|(?:enum|struct|union) .*\{)\s*(?://.*)?$", line)
        if named and not (out and out[-1].lstrip().startswith("///")):
            out.append(" " * (len(line) - len(line.lstrip())) + "/// As in cuda.h.")
        out.append(line)
    return out


def readable(name, text):
    """The text of a header, for doxygen."""
    # Words in angle brackets are placeholders, not tags.
    text = re.sub(r"^\s*(?:///|\*|/\*).*", lambda line: "`".join(
        part if index % 2 else re.sub(r"<(\w+)>", r"&lt;\1&gt;", part) for index, part in enumerate(line[0].split("`"))), text,
        flags=re.M)
    if name.endswith(".h"):
        text = from_c(text)
    lines = text.split("\n")
    if name.endswith("driver/types.hpp"):
        lines = as_in_cuda(lines)
    lines = grouped(with_special_members(lines))
    return "\n".join(["/** @file */", *lines])


def copy_all(include, target):
    """Writes every header below `include` to the same place below `target`. Line numbers change."""
    for path in sorted(include.rglob("*")):
        if path.suffix in (".h", ".hpp", ".def"):
            name = path.relative_to(include)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text()
            (target / name).write_text(text if path.suffix == ".def" else readable(name.as_posix(), text))
