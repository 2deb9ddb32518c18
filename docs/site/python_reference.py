# SPDX-License-Identifier: Apache-2.0
"""The reference of the Python package, from its source: signatures and docstrings of what is public.

The source is read, not imported, so that neither the library nor PyTorch is needed. What is public and has no
docstring is an error.
"""

import ast
import sys
import textwrap
from pathlib import Path

# The modules that users import, by the names that they import.
MODULES = {"weir": "__init__.py", "weir.torch": "torch/__init__.py", "weir.torch_build": "torch_build.py", "weir.cupy": "cupy.py",
           "weir.numba": "numba.py", "weir.cuda_core": "cuda_core.py"}


class Package:
    """The parsed files of the package."""

    def __init__(self, folder):
        self.folder, self.trees, self.missing = folder, {}, []

    def tree(self, file):
        if file not in self.trees:
            self.trees[file] = ast.parse((self.folder / file).read_text())
        return self.trees[file]

    def definition(self, file, name, depth=0):
        """(file, node) of a name of a module: where it is defined, through imports from the package."""
        for node in self.tree(file).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                return file, node
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                    return file, node
            if isinstance(node, ast.ImportFrom) and node.level and node.module and depth < 5:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        there = self.module_file(file, node)
                        if there is not None:
                            return self.definition(there, alias.name, depth + 1)
        return None

    def module_file(self, file, node):
        folder = Path(file).parent
        for _ in range(node.level - 1):
            folder = folder.parent
        base = folder / node.module.replace(".", "/")
        for found in (f"{base}.py", f"{base}/__init__.py"):
            if (self.folder / found).exists():
                return found
        return None

    def public(self, file):
        """The names in __all__, or the public definitions."""
        for node in self.tree(file).body:
            if isinstance(node, ast.Assign) and any(isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets):
                return ast.literal_eval(node.value)
        return [node.name for node in self.tree(file).body
                if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")]


def doc(package, where, node):
    text = ast.get_docstring(node)
    if not text:
        package.missing.append(f"{where} has no docstring")
        return ""
    return text


def as_markdown(text):
    """A docstring: paragraphs as they are, indented parts as code."""
    out = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if all(line.startswith("    ") for line in lines if line):
            out.append("```python\n" + textwrap.dedent(paragraph) + "\n```")
        elif any("   " in line.strip() for line in lines):  # a list of parameters in columns
            out.append("```text\n" + paragraph + "\n```")
        else:
            out.append(paragraph)
    return "\n\n".join(out)


def signature(node, name, skip_self=False):
    arguments = node.args
    if skip_self and arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments = ast.arguments(posonlyargs=arguments.posonlyargs, args=arguments.args[1:], vararg=arguments.vararg,
                                  kwonlyargs=arguments.kwonlyargs, kw_defaults=arguments.kw_defaults, kwarg=arguments.kwarg,
                                  defaults=arguments.defaults)
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{name}({ast.unparse(arguments)}){result}"


def decorators(node):
    return {ast.unparse(each).split("(")[0] for each in node.decorator_list}


def members(package, file, node):
    """The members of a class, with those of its private bases."""
    own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    found = list(node.body)
    for base in node.bases:
        if isinstance(base, ast.Name):
            there = package.definition(file, base.id)
            if there and isinstance(there[1], ast.ClassDef) and base.id not in package.public("__init__.py"):
                found += [each for each in members(package, *there) if getattr(each, "name", "") not in own]
    return found


def class_text(package, module, name, file, node):
    out = [f"### class {module}.{name}", as_markdown(doc(package, f"{module}.{name}", node))]
    bases = [ast.unparse(base) for base in node.bases]
    if bases:
        out.insert(1, f"Bases: {', '.join(f'`{base}`' for base in bases)}")
    for member in members(package, file, node):
        if isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name == "__init__"):
            kinds = decorators(member)
            if any(each.endswith((".setter", ".deleter")) or each.endswith("overload") for each in kinds):
                continue
            text = ast.get_docstring(member)
            if member.name == "__init__":
                out.append(f"`{signature(member, name, True)}`" + (f"\n\n{as_markdown(text)}" if text else ""))
                continue
            if not text:
                text = doc(package, f"{module}.{name}.{member.name}", member)
            shown = member.name if "property" in kinds else signature(member, member.name, "staticmethod" not in kinds)
            out.append(f"#### `{shown}`\n\n{as_markdown(text)}")
    return "\n\n".join(out)


def page(folder):
    """The reference as one page of Markdown. Ends the program if something public has no docstring."""
    package = Package(folder)
    out = ["# Python reference", "What is public in the package `weir`. [python.md](../python.md) and [pytorch.md](../pytorch.md) are the "
           "guides."]
    for module, file in MODULES.items():
        out += [f"## {module}", as_markdown(ast.get_docstring(package.tree(file)) or "")]
        for name in sorted(package.public(file), key=str.lower):
            found = package.definition(file, name)
            if found is None:
                package.missing.append(f"{module}.{name} is not defined in the package")
                continue
            there, node = found
            if isinstance(node, ast.ClassDef):
                out.append(class_text(package, module, name, there, node))
            elif isinstance(node, ast.FunctionDef):
                out += [f"### `{module}.{signature(node, name)}`", as_markdown(doc(package, f"{module}.{name}", node))]
            else:
                out += [f"### `{module}.{name}`", f"`{ast.unparse(node)}`"]
    if package.missing:
        sys.exit("\n".join(package.missing))
    return "\n\n".join(out) + "\n"


if __name__ == "__main__":
    print(page(Path(sys.argv[1])))
