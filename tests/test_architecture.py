"""The structure of the package, read from its source: order of imports, inheritance, documentation."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
from abc import ABC
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import torchbandits as tb

PACKAGE = Path(tb.__file__).parent
FILES = sorted(p for p in PACKAGE.rglob("*.py"))

# Ground floor first, as in the architecture sheet: a file imports only from rooms above its own, or from its own room.
ROOMS = [
    "version", "errors", "upstream", "extras", "locks", "threads", "calls", "budget", "precision", "gradients",
    "shapes", "buffered",
    "display",  # how records, policies and bandits are printed
    "transfers", "types", "checks",
    "packing",  # fingerprints as words
    "sources", "linalg",
    "tanimoto",  # their kernel
    "tasks",
    "spherical", "random_effects",  # kernels
    "kernels", "embeddings", "streams",
    "posteriors", "tabular", "environments", "arms", "widths", "memory", "ratios", "batching",
    "scores", "starts", "constraints",
    "fitting", "optimize",
    "aims",  # what is wanted of several outcomes
    "policies",  # starts, kernel fits and the search of a box are parts of a policy
    "ingredients", "forgetting", "outcomes",
    "figures", "history", "selections", "reporting", "failures", "loop", "journal",
    "botorch",  # a bandit returns its BoTorch model
    "explanation", "sets", "fronts", "theorems", "stopping",
    "filling",  # batches under constraints
    "bandit", "outcome_bandit", "worker", "contexts", "contextual",
    "evaluation", "rounds", "steps", "running", "callbacks", "diagnostics", "files", "experiments",
    "campaigns", "plugins", "cli", "testing", "__init__", "__main__",
]  # fmt: skip

SLOW_TO_LOAD = (
    "botorch", "scipy", "torchbandits.botorch",
    "torchbandits.arms.compiled", "torchbandits.linalg.compiled", "torchbandits.linalg.popcount",  # need numba
    "torchbandits.arms.fused",  # needs Triton
    "matplotlib", "torchbandits.experiments",  # of an extra: Matplotlib, pandas and pydantic
)  # fmt: skip

PUBLIC = ["Bandit", "run", "gp_ucb", "igp_ucb", "gp_bucb", "bkb", "batch_bkb", "uniform", "environments"]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("torchbandits", *(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)))


def room(module: str) -> str:
    """`torchbandits.linalg.roots` -> `linalg`; the package itself -> `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_module(module: str) -> bool:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").exists()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@cache
def imported_modules(path: Path) -> list[tuple[str, int]]:
    """Modules of the package that a file imports, anywhere in it, type-checking blocks included.

    `importlib.import_module("...")` of a constant is an import like any other: it must not hide a cycle.
    """
    found = []
    package = module_name(path).split(".")
    if path.name != "__init__.py" or path.parent == PACKAGE:
        package = package[:-1]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                deeper = f"{source}.{alias.name}"
                inside = source.split(".")[0] == "torchbandits" and is_module(deeper)
                found.append((deeper if inside else source, node.lineno))
        elif isinstance(node, ast.Call) and called(node) == "import_module" and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.append((importlib.util.resolve_name(argument.value, ".".join(package)), node.lineno))
    return [(m, line) for m, line in found if m.split(".")[0] == "torchbandits"]


def called(node: ast.Call) -> str:
    """The last name of a called expression: `import_module` for both `import_module(...)` and
    `importlib.import_module(...)`."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def all_modules() -> list:
    names = [info.name for info in pkgutil.walk_packages(tb.__path__, "torchbandits.")]
    return [tb, *(importlib.import_module(name) for name in names if not name.endswith("__main__"))]


def all_classes() -> list[type]:
    classes = {c for m in all_modules() for c in vars(m).values() if inspect.isclass(c)}
    return sorted(
        (c for c in classes if c.__module__.split(".")[0] == "torchbandits"), key=lambda c: (c.__qualname__, c.__module__)
    )


def identify(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_imports_only_from_rooms_above():
    for path in FILES:
        own = room(module_name(path))
        assert own in ROOMS, f"{identify(path)} lives in no room of the architecture sheet"
        for module, line in imported_modules(path):
            other = room(module)
            assert other in ROOMS, f"{identify(path)}:{line} imports {module}, which is in no room"
            assert other == own or ROOMS.index(other) < ROOMS.index(own), (
                f"{identify(path)}:{line} imports {module}: {other} is not above {own}"
            )


def test_no_import_cycles_within_a_room():
    graph = {module_name(p): {m for m, _ in imported_modules(p) if m != module_name(p)} for p in FILES}
    # A package's __init__ only collects its files: its imports are not edges of the files that import the package.
    graph = {m: {d for d in deps if room(d) == room(m)} for m, deps in graph.items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(f"import cycle: {error.args[1]}") from error


def test_only_what_is_slow_to_load_is_imported_inside_functions():
    """Such imports count for the order of the rooms and for cycles like all others. Slow modules may be missing."""
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                for inner in [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]:
                    modules = [a.name for a in inner.names] if isinstance(inner, ast.Import) else [inner.module or ""]
                    slow = all(any(f"{m}.".startswith(f"{s}.") for s in SLOW_TO_LOAD) for m in modules)
                    assert slow, f"{identify(path)}:{inner.lineno} imports {modules} inside a function"


def test_files_are_well_named():
    for path in FILES:
        assert path.stem not in {"utils", "helpers", "misc", "common"}, identify(path)


def test_randomness_is_an_argument():
    """Every torch draw names its generator, and no code seeds the global one."""
    for path in FILES:
        draws = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal"}
        in_place = {"uniform_", "normal_", "random_", "exponential_", "bernoulli_"}
        for node in nodes_of(path):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            name, owner = node.func.attr, node.func.value
            on_torch = isinstance(owner, ast.Name) and owner.id == "torch"
            where = f"{identify(path)}:{node.lineno}"
            if (on_torch and name in draws) or name in in_place:
                assert any(k.arg == "generator" for k in node.keywords), f"{where} draws from the global generator"
            assert not (on_torch and name in {"manual_seed", "seed"}), f"{where} seeds the global generator"
            if room(module_name(path)) != "experiments":  # has its own worker processes
                assert not (on_torch and name.startswith("set_")), f"{where} changes a process-wide setting"


# Private attributes that belong to PyTorch, BoTorch, GPyTorch or the standard library.
NOT_OURS = {
    "_apply", "_buffers", "_C", "_exit", "_fields", "_get_indices", "_getframe", "_getitem", "_load_from_state_dict", "_matmul",
    "_original_train_inputs", "_replace", "_set_grad_enabled", "_version", "_X_baseline", "_batch_shape", "_is_linear",
    "_task_feature", "_output_tasks",
}  # fmt: skip


def own_attributes(tree: ast.Module) -> set[str]:
    """Names with an underscore that a class of the file defines, or sets on itself."""
    names = set()
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(cls):
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
    return names


def test_private_attributes_are_those_of_the_files_own_classes():
    """`x._name` is read of `self`, `cls` and `super()` only, or where a class of the file has an attribute of that name."""
    for path in FILES:
        own = own_attributes(tree_of(path))
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                name = node.value.id if isinstance(node.value, ast.Name) else ""
                inherited = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
                good = name in ("self", "cls") or inherited or (name and node.attr in own) or node.attr in NOT_OURS
                assert good, f"{identify(path)}:{node.lineno} reads {ast.unparse(node)}"


def test_inheritance_is_shallow():
    """At most two ancestors, and no method is overridden twice: the code of a method is in the class or in one base class.

    A base class may be concrete, such as that of the sections of a configuration, which share a constructor: depth and
    repeated overriding make a class hard to read, concrete bases do not. Errors and states are exempt. They form their own
    trees: a family of states adds parts to those of a wider family, and extends the methods that restore or drop them by
    calls of super.
    """
    for cls in all_classes():
        if issubclass(cls, BaseException | tb.policies.State):
            continue
        ancestors = [c for c in cls.__mro__[1:] if c.__module__.split(".")[0] == "torchbandits"]
        assert len(ancestors) <= 2, f"{cls.__qualname__} is more than two deep"
        for name in {n for c in (cls, *ancestors) for n in vars(c) if not n.startswith("_") or n == "__call__"}:
            defined = [c for c in (cls, *ancestors) if callable(vars(c).get(name))]
            abstract = [c for c in defined if getattr(vars(c)[name], "__isabstractmethod__", False)]
            overridden = len(defined) - max(1, len(abstract))  # declaring an abstract method again overrides nothing
            assert overridden <= 1, f"{name} is overridden twice: {[c.__qualname__ for c in defined]}"


def test_abc_is_no_mere_label():
    """A class that is declared ABC has an abstract member."""
    for cls in all_classes():
        assert ABC not in cls.__bases__ or inspect.isabstract(cls), f"{cls.__qualname__} is an ABC without an abstract method"


def test_the_public_list_is_explicit_and_complete():
    assert sorted(tb.__all__, key=str.lower) == sorted(set(tb.__all__), key=str.lower), "repeated names"
    for name in tb.__all__:
        assert hasattr(tb, name), f"__all__ lists {name}, which does not exist"
    missing = [name for name in PUBLIC if name not in tb.__all__]
    assert not missing, f"the architecture sheet promises {missing}"
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert all(alias.name != "*" for alias in node.names)


def test_public_names_are_documented():
    for name in sorted(tb.__all__):
        value = getattr(tb, name)
        if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
            continue
        assert inspect.getdoc(value), f"{name} has no docstring"
        if not inspect.isclass(value):
            continue
        for attribute, raw in vars(value).items():
            if attribute.startswith("_") and attribute != "__call__":
                continue
            target = getattr(value, attribute)
            if inspect.isroutine(target) or isinstance(raw, property):
                text = inspect.getdoc(raw.fget if isinstance(raw, property) else target)
                assert text, f"{name}.{attribute} has no docstring"


def test_every_module_says_what_it_is_for():
    for path in FILES:
        assert ast.get_docstring(tree_of(path)), f"{identify(path)} has no docstring"


def test_the_oracles_share_no_code_with_the_package():
    for name in [path.name for path in Path(__file__).parent.glob("oracles*.py")] + ["tolerances.py"]:
        for node in ast.walk(ast.parse((Path(__file__).parent / name).read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(m.split(".")[0] == "torchbandits" for m in modules)
