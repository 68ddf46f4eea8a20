"""FTRL-Proximal as a PyTorch optimizer: `from ftrie.torch import FTRLProximal`.

McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013), algorithm 1, by its definition. A
coordinate's weight after its t-th gradient is

    w[t+1] = argmin  g[1:t] w + 1/2 sum_s sigma[s] (w - w[s])^2 + l1 |w| + 1/2 l2 w^2,    sigma[1:t] = 1 / eta[t]

with eta[t] = alpha / (beta + sqrt(n[t])), n[t] the sum of its g^2 up to t; or lr / (1 + decay sqrt(n[t])), which is the
same with alpha = lr / decay and beta = 1 / decay. In the code 1 / eta = base + slope sqrt(n). The argmin is

    w = -(z - clamp(z, -l1, l1)) / (base + slope sqrt(n) + l2),        z = sum_s g[s] - sigma[s] w[s]

sigma[1] contains `base`, so z starts at -base w[1] and from then on takes g - slope (sqrt(n + g^2) - sqrt(n)) w. From
w[1] = 0 this is the trainer's learner (`trainer/learn/learners/ftrl.py`) step for step. docs/library.md explains when a
coordinate starts, and what a learning rate scheduler does.

Oracle: `tests/ftrie/proximal_oracle.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from numbers import Real
from typing import Any, NamedTuple

from model_store.errors import installing

try:
    import torch
    from torch import Tensor
    from torch.optim.optimizer import Optimizer, _default_to_fused_or_foreach
except ModuleNotFoundError as error:
    # torch is installed, but lacks a module of its own.
    if error.name != "torch":
        raise
    raise ImportError(f"ftrie.torch needs PyTorch: {installing('torch')}") from error

__all__ = ["FTRLProximal"]

_FORMS: tuple[dict[str, float], ...] = ({"alpha": 0.1, "beta": 1.0}, {"lr": 0.1, "decay": 1.0})
"""The two forms of the learning rate, and the default of each option."""

_Rate = tuple[float, float]
"""base and slope: 1 / eta = base + slope sqrt(n)."""


class FTRLProximal(Optimizer):
    """FTRL-Proximal with a learning rate for each coordinate, L1 and L2.

    params: floating-point parameters, or groups of them with options of their own. Give the rate as `alpha` (default
    0.1) and `beta` (1.0), or as `lr` (0.1) and `decay` (1.0); learning rate schedulers need the second form. A group
    may use either. `l1`, `l2`: the penalty l1 |w| + 1/2 l2 w^2. `foreach`: update the dense parameters of a group
    together, None where that is faster. `maximize`: ascend.

    Gradients may be dense or sparse (`nn.EmbeddingBag(sparse=True)`); a sparse one touches only its rows. State of each
    parameter: `z` and `n`, in its shape and type, float32 for 16-bit parameters. Raises ValueError for an invalid
    option or parameter.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        alpha: float | None = None,
        beta: float | None = None,
        lr: float | None = None,
        decay: float | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        given = {"alpha": alpha, "beta": beta, "lr": lr, "decay": decay}
        rate = {name: value for name, value in given.items() if value is not None}
        form = _form_of(rate) or _FORMS[0]
        defaults = form | rate | {"l1": l1, "l2": l2, "foreach": foreach, "maximize": maximize}
        _check(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; what the group does not set is as in the constructor.

        A group with the other form of the rate takes nothing of the constructor's rate.
        """
        own = _form_of(param_group) if isinstance(param_group, dict) else None
        if own is not None:
            param_group = (
                own | {name: self.defaults[name] for name in own if name in self.defaults} | param_group
            )
        super().add_param_group(param_group)
        # torch has added the group by its own checks; one that fails ours is taken out again.
        group = self.param_groups[-1]
        for name in chain(*_FORMS):
            if own is not None and name not in own:
                group.pop(name, None)
        try:
            _check(group)
            for parameter in group["params"]:
                if not parameter.is_floating_point() or parameter.layout != torch.strided:
                    raise ValueError(
                        f"got a parameter of {parameter.dtype} and {parameter.layout}; expected dense real numbers, "
                        "such as torch.float32"
                    )
        except ValueError:
            self.param_groups.pop()
            raise
        group["inverse_rate"] = _rate_of(group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled optimizer or a loaded state; options that it lacks are as by default."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("foreach", None)
            group.setdefault("maximize", False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit; nothing is shared with it.

        torch casts the state to the type of its parameter, which for 16-bit parameters is not that of the state.
        """
        super().load_state_dict(state_dict)
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        # torch has compared the lengths.
        for number, parameter in zip(saved, own, strict=False):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[parameter][name] = value.to(parameter.device, _state_type(parameter), copy=True)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; returns what `closure` returns, which is called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        rate = _rate_of(group)
        if rate is None:
            return
        if group["inverse_rate"] != rate:
            self._rebase(group, rate)
        parameters: list[Any] = []
        gradients: list[Any] = []
        zs: list[Any] = []
        ns: list[Any] = []
        self._init_group(group, parameters, gradients, zs, ns)
        penalties = _Penalties(group["l1"], group["l2"])
        dense: list[_Each] = []
        for parameter, gradient, z, n in zip(parameters, gradients, zs, ns, strict=True):
            gradient = -gradient if group["maximize"] else gradient
            if gradient.is_sparse:
                _update_rows(_Each(parameter, gradient, z, n), rate, penalties)
            else:
                dense.append(_Each(parameter, gradient, z, n))
        foreach = group["foreach"]
        if foreach is None:
            _, foreach = _default_to_fused_or_foreach([each.weight for each in dense], False)
        if foreach:
            together: dict[Any, list[_Each]] = {}  # by what can be updated at once: one device, one type
            for each in dense:
                together.setdefault((each.weight.device, each.weight.dtype), []).append(each)
            for batch in together.values():
                ws, gs, zs, ns = map(list, zip(*batch, strict=True))
                state = zs[0].dtype
                # In the state's type: 16 bits would lose small steps.
                wide = [w.to(state) for w in ws], [g.to(state) for g in gs]
                torch._foreach_copy_(ws, _learn_all(*wide, zs, ns, rate, penalties))
        else:
            for each in dense:
                for w, g, z, n in _blocks(*each):
                    w.copy_(_learn(w.to(z.dtype), g.to(z.dtype), z, n, rate, penalties))

    def _init_group(
        self, group: dict[str, Any], parameters: list[Any], gradients: list[Any], zs: list[Any], ns: list[Any]
    ) -> None:
        """Collect the parameters that have a gradient, and their state. torch.compile calls this while it traces."""
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                initial = parameter.detach().to(_state_type(parameter))
                state["z"] = initial * -group["inverse_rate"][0]
                state["n"] = torch.zeros_like(initial)
            parameters.append(parameter)
            gradients.append(parameter.grad)
            zs.append(state["z"])
            ns.append(state["n"])

    @torch.compiler.disable
    def _rebase(self, group: dict[str, Any], rate: _Rate) -> None:
        """Go on with another rate: sigma[t] = 1 / eta[t] - 1 / eta[t-1] of every coordinate, at its present weight."""
        # None while lr has been 0: then no parameter has a state that could move.
        base, slope = (new - old for new, old in zip(rate, group["inverse_rate"] or rate, strict=True))
        for parameter in group["params"]:
            if state := self.state.get(parameter):
                weight = parameter.to(state["z"].dtype)
                state["z"].addcmul_(state["n"].sqrt().mul_(slope).add_(base), weight, value=-1)
        group["inverse_rate"] = rate


_BLOCK = 1 << 17
"""How many numbers of a tensor are updated at a time."""


class _Penalties(NamedTuple):
    l1: float
    l2: float


class _Each(NamedTuple):
    """Tensors of one shape: weights, their gradients, and their state."""

    weight: Any
    gradient: Any
    z: Any
    n: Any


@torch.compiler.disable  # torch.compile does not support sparse tensors
def _update_rows(each: _Each, rate: _Rate, penalties: _Penalties) -> None:
    """Update what a sparse gradient names: rows, or with several sparse dimensions, parts of them."""
    index, gradient = _coalesced(each.gradient, each.z.dtype)
    for *rows, g in _blocks(*index, gradient):
        wholes, first, at = (each.weight, each.z, each.n), rows[0], tuple(rows)
        w, z, n = (x.index_select(0, first) if len(at) == 1 else x[at] for x in wholes)
        new = _learn(w.to(z.dtype), g, z, n, rate, penalties)
        for whole, part in zip(wholes, (new.to(w.dtype), z, n), strict=True):
            if len(at) == 1:
                whole.index_copy_(0, first, part)
            else:
                whole[at] = part


def _coalesced(gradient: Tensor, kind: torch.dtype) -> tuple[Sequence[Tensor], Tensor]:
    """The indices of a sparse gradient, one tensor for each dimension, each index once; and the sums of its values.

    `embedding_bag` adds the rows of an index in their order, and seven times as fast as `Tensor.coalesce`.
    """
    if gradient.is_coalesced() or gradient.sparse_dim() > 1 or not gradient._nnz():
        gradient = gradient.coalesce()
        return gradient.indices().unbind(), gradient.values().to(kind)
    values = gradient._values().to(kind)
    # Stable: the sum over a row has the same order, and so the same bits, each time.
    rows, order = torch.sort(gradient._indices()[0], stable=True)
    rows, counts = torch.unique_consecutive(rows, return_counts=True)
    starts = counts.cumsum(0) - counts
    sums = torch.nn.functional.embedding_bag(order, values.reshape(len(order), -1), starts, mode="sum")
    return [rows], sums.reshape(-1, *values.shape[1:])


def _blocks(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Parts of tensors of one length; the last one's have about `_BLOCK` numbers.

    What is computed of a part stays in the processor's cache. A GPU or a compiled step would gain nothing.
    """
    last = tensors[-1]
    if last.numel() <= _BLOCK or not last.is_cpu or torch.compiler.is_compiling():
        return [tensors]
    rows = max(1, _BLOCK * len(last) // last.numel())
    # Views: what is computed in place changes the whole tensors.
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def _learn(w: Tensor, g: Tensor, z: Tensor, n: Tensor, rate: _Rate, penalties: _Penalties) -> Tensor:
    """Update the state in place and return the new weights. Where n is 0, no gradient has come, and w stays."""
    base, slope = rate
    root = n.sqrt()
    n.addcmul_(g, g)
    new_root = n.sqrt()
    z.add_(g).addcmul_(root.sub_(new_root), w, value=slope)
    shrunk = torch.nn.functional.softshrink(z, penalties.l1)
    # The minus of the argmin is in the denominator.
    new = shrunk.div_(new_root.mul_(-slope).sub_(base + penalties.l2))
    return torch.where(n == 0, w, new)


def _learn_all(
    ws: list[Tensor], gs: list[Tensor], zs: list[Tensor], ns: list[Tensor], rate: _Rate, penalties: _Penalties
) -> list[Tensor]:
    """`_learn` of several tensors at once: on a GPU, one kernel an operation instead of one a tensor."""
    base, slope = rate
    roots = torch._foreach_sqrt(ns)
    torch._foreach_addcmul_(ns, gs, gs)
    new_roots = torch._foreach_sqrt(ns)
    torch._foreach_add_(zs, gs)
    torch._foreach_sub_(roots, new_roots)
    torch._foreach_addcmul_(zs, roots, ws, value=slope)
    # softshrink has no form for lists: z - clamp(z) is the same.
    inside = torch._foreach_clamp_min(zs, -penalties.l1)
    torch._foreach_clamp_max_(inside, penalties.l1)
    new = torch._foreach_sub(zs, inside)
    torch._foreach_mul_(new_roots, -slope)
    torch._foreach_sub_(new_roots, base + penalties.l2)
    torch._foreach_div_(new, new_roots)
    return [torch.where(n == 0, w, computed) for w, n, computed in zip(ws, ns, new, strict=True)]


def _state_type(parameter: Tensor) -> torch.dtype:
    """The type of a parameter's state: in 16 bits, n would soon stop to grow."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _form_of(options: dict[str, Any]) -> dict[str, float] | None:
    """The form of the rate that these options use, None where they have neither's."""
    used = [form for form in _FORMS if form.keys() & options.keys()]
    if len(used) > 1:
        names = " and ".join(name for name in chain(*_FORMS) if name in options)
        raise ValueError(f"got {names}; give either alpha and beta, or lr and decay")
    return used[0] if used else None


def _rate_of(group: dict[str, Any]) -> _Rate | None:
    """1 / eta = base + slope sqrt(n); None where lr is 0, which means no step."""
    if "lr" not in group:
        return group["beta"] / group["alpha"], 1.0 / group["alpha"]
    if not group["lr"]:
        return None
    return 1.0 / group["lr"], group["decay"] / group["lr"]


def _check(options: dict[str, Any]) -> None:
    """Raise ValueError for an option that is no number, or out of its bounds."""
    for name in ("alpha", "beta", "lr", "decay", "l1", "l2"):
        if name in options:
            value = options[name]
            bound = "> 0" if name == "alpha" else ">= 0"
            number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < 0 or (name == "alpha" and value == 0):
                raise ValueError(f"{name}: got {value!r}; expected a finite number {bound}")
