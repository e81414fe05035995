"""mov, whole and in parts."""

from .cases import BITS, INTEGERS, case
from .program import width

for kind in ("pred", *BITS, *INTEGERS, "f32", "f64"):
    case(f"mov.{kind}", kind, kind, lambda a: a)
for form, parts in {"b32": ("b16", "b16"), "b64": ("b32", "b32"), "b64 of 4": ("b16",) * 4}.items():
    kind, size, n = form[:3], width(parts[0]), len(parts)
    whole, pieces = "{s0}", ", ".join(f"{{d{i}}}" for i in range(n))
    case(f"mov.{form} apart", parts, kind, lambda a, size=size, n=n: tuple(
        a >> size * i & (1 << size) - 1 for i in range(n)), f"mov.{kind} {{{{{pieces}}}}}, {{s0}};")
    pieces = ", ".join(f"{{s{i}}}" for i in range(n))
    case(f"mov.{form} together", kind, parts, lambda *a, size=size: sum(
        x << size * i for i, x in enumerate(a)), f"mov.{kind} {{d0}}, {{{{{pieces}}}}};")
