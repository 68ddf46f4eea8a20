"""FTRLProximal against its definition, torch's own optimizers and the trainer; the patterns of torch's test_optim."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import re
import shutil
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.hash_kernels import hash_keys
from tests.ftrie.proximal_oracle import play
from tests.matrix import examples
from tests.worlds import batch_of, model_of, shop_rows, shop_spec

if find_spec("torch") is None:
    pytest.skip("needs PyTorch: make torch, or pip install 'ftrie[torch]'", allow_module_level=True)


class _OnDemand:
    """A module that the first test imports: every process of xdist collects these tests, and one runs them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


torch: Any = _OnDemand("torch")
ftrie_torch: Any = _OnDemand("ftrie.torch")
PENALTIES = {"none": {}, "l1": {"l1": 0.5}, "l2": {"l2": 0.3}, "both": {"l1": 0.4, "l2": 0.2}}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.sparse.check_sparse_tensor_invariants.enable()
    torch.set_num_threads(1)  # tests run in parallel
    torch.manual_seed(0)


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> Any:
    """The type of this name."""
    return getattr(torch, request.param)


def parameter(*shape: int, dtype: Any = None) -> Any:
    return torch.nn.Parameter(torch.randn(shape, dtype=dtype or torch.float64))


def copies(parameters: list[Any]) -> list[Any]:
    return [torch.nn.Parameter(each.detach().clone()) for each in parameters]


def run(parameters: list[Any], gradients: list[list[Any]], optimizer: Any, step: Any = None) -> None:
    for each in gradients:
        for p, g in zip(parameters, each, strict=True):
            p.grad = None if g is None else g.clone()
        (step or optimizer.step)()


def gradients_of(parameters: list[Any], steps: int, zero: float = 0.0) -> list[list[Any]]:
    """Random gradients, some numbers of which are 0."""
    return [
        [torch.randn_like(p) * (torch.rand(p.shape) >= zero).to(p.dtype) for p in parameters]
        for _ in range(steps)
    ]


def inverse(form: dict[str, float]) -> dict[str, float]:
    if "lr" in form:
        return {"base": 1 / form["lr"], "slope": form["decay"] / form["lr"]}
    return {"base": form["beta"] / form["alpha"], "slope": 1 / form["alpha"]}


NUMBERS = st.floats(-4.0, 4.0).filter(lambda x: x == 0.0 or abs(x) > 1e-3)
POSITIVE = st.floats(0.01, 4.0)
RATE = st.one_of(
    st.fixed_dictionaries({"alpha": POSITIVE, "beta": st.just(0.0) | POSITIVE}),
    st.fixed_dictionaries({"lr": POSITIVE, "decay": st.just(0.0) | POSITIVE}),
)


@examples(100)
@given(
    start=st.lists(NUMBERS, min_size=3, max_size=3),
    gradients=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=8),
    rate=RATE,
    l1=st.just(0.0) | POSITIVE,
    l2=st.just(0.0) | POSITIVE,
    way=st.sampled_from(["dense", "foreach", "sparse", "uncoalesced"]),
)
def test_weights_minimise_the_proximal_objective_from_any_start(
    start: list[float], gradients: list[list[float]], rate: dict[str, float], l1: float, l2: float, way: str
) -> None:
    wanted = play(np.array(start), np.array(gradients), [inverse(rate)] * len(gradients), l1=l1, l2=l2)
    w = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = ftrie_torch.FTRLProximal([w], l1=l1, l2=l2, foreach=way == "foreach", **rate)
    for gradient, expected in zip(gradients, wanted, strict=True):
        g = torch.tensor(gradient, dtype=torch.float64)
        run([w], [[g if way in ("dense", "foreach") else sparse_of(g, way == "uncoalesced")]], optimizer)
        assert w.detach().numpy() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
def test_without_penalties_it_is_adagrad_whose_eps_is_beta_or_gradient_descent(sparse: bool) -> None:
    a = parameter(30, 4)
    b, c, d = copies([a, a, a])
    gradients = gradients_of([a], 60)
    if sparse:
        gradients = [[g[:7].to_sparse(1)] for (g,) in gradients]
        gradients = [[torch.sparse_coo_tensor(g.indices(), g.values(), a.shape)] for (g,) in gradients]
    run([a], gradients, ftrie_torch.FTRLProximal([a], alpha=0.3, beta=0.7))
    run([b], gradients, torch.optim.Adagrad([b], lr=0.3, eps=0.7))
    assert torch.allclose(a, b, rtol=1e-11, atol=1e-13)
    run([c], gradients, ftrie_torch.FTRLProximal([c], lr=0.2, decay=0.0))
    run([d], gradients, torch.optim.SGD([d], lr=0.2))
    assert torch.allclose(c, d, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    "options", [{"beta": 0.0}, {"beta": 0.0, "l1": 0.5, "l2": 0.5}, {"l1": 0.5, "l2": 0.5}]
)
@pytest.mark.parametrize("foreach", [True, False])
def test_a_coordinate_keeps_its_weight_until_its_first_gradient(foreach: bool, options: Any) -> None:
    w = parameter(4)
    start = w.detach().clone()
    optimizer = ftrie_torch.FTRLProximal([w], foreach=foreach, **options)
    run([w], [[torch.tensor([1.0, 0.0, 0.0, -1.0], dtype=torch.float64)]] * 3, optimizer)
    assert torch.equal(w[1:3], start[1:3])
    assert not (w[[0, 3]] == start[[0, 3]]).any()


def test_what_is_not_a_number_is_not_hidden() -> None:
    for foreach in (True, False):
        w, gradient = parameter(3), torch.tensor([1.0, float("nan"), 0.0], dtype=torch.float64)
        run([w], [[gradient]] * 2, ftrie_torch.FTRLProximal([w], foreach=foreach))
        assert w.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)], indirect=["dtype"])
def test_it_learns_what_the_trainer_learns(dtype: Any, tolerance: float, sparse: bool) -> None:
    rows = shop_rows(1000, seed=3)
    spec = shop_spec(variants=1)
    learner = spec.learner.model_copy(update={"l1": 0.5})  # cuts some weights
    model = model_of(spec.model_copy(update={"learner": learner}), list(rows[0]))
    bag = torch.nn.EmbeddingBag(2000, 1, mode="sum", sparse=sparse, dtype=dtype)
    torch.nn.init.zeros_(bag.weight)
    names = ("alpha", "beta", "l1", "l2")
    optimizer = ftrie_torch.FTRLProximal(bag.parameters(), **{name: getattr(learner, name) for name in names})
    ids: dict[int, int] = {}
    off, compared = 0.0, 0
    for first in range(0, len(rows), 20):
        made = model.maker.make(batch_of(rows[first : first + 20]))
        model.learn(made)
        hashed = made.hashed
        for row in range(20):
            part = slice(hashed.starts[row], hashed.starts[row + 1])
            known = [ids.setdefault(int(each), len(ids)) for each in hashed.hashes[part]]
            x = torch.tensor(hashed.x[part], dtype=dtype)
            optimizer.zero_grad()
            score = bag(torch.tensor([known]), per_sample_weights=x[None]).squeeze()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                score, torch.tensor(hashed.labels[row], dtype=dtype)
            )
            (float(hashed.weights[row]) * loss).backward()
            optimizer.step()
        keys = model.table.keys()
        hashes = np.empty(keys.slots.size, np.uint64)
        hash_keys(keys.data, keys.offsets, hashes)
        ours = bag.weight.detach()[[ids[int(each)] for each in hashes], 0].double().numpy()
        theirs = model.coordinates.weights(keys)[:, 0]
        off, compared = max(off, float(np.abs(ours - theirs).max())), compared + theirs.size
    assert off <= tolerance
    assert compared > 2000
    assert 5 < np.count_nonzero(theirs) < theirs.size


def sparse_of(dense: Any, uncoalesced: bool) -> Any:
    """The rows of a gradient that are not 0; uncoalesced: each twice, with halves of it."""
    rows = dense.reshape(len(dense), -1).any(1).nonzero().flatten()
    values = dense[rows]
    if uncoalesced:
        rows, values = torch.cat([rows, rows.flip(0)]), torch.cat([values * 0.25, values.flip(0) * 0.75])
    return torch.sparse_coo_tensor(rows[None], values, dense.shape)


@pytest.mark.parametrize("uncoalesced", [False, True])
@pytest.mark.parametrize("shape", [(50,), (50, 3), (50, 3, 2), (50, 20_000)])  # the last is updated in parts
@pytest.mark.parametrize("dtype", ["float32", "float64"], indirect=True)
def test_sparse_gradients_do_what_dense_ones_do(dtype: Any, shape: Any, uncoalesced: bool) -> None:
    a = parameter(*shape, dtype=dtype)
    (b,) = copies([a])
    options = {"alpha": 0.3, "l1": 0.2, "l2": 0.1}
    first, second = ftrie_torch.FTRLProximal([a], **options), ftrie_torch.FTRLProximal([b], **options)
    for (g,) in gradients_of([a], 10 if a.numel() > 1000 else 80):
        g[torch.rand(50) < 0.8] = 0
        run([a], [[g]], first)
        run([b], [[sparse_of(g, uncoalesced)]], second)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)
    for name in ("z", "n"):
        assert torch.allclose(first.state[a][name], second.state[b][name], rtol=tolerance, atol=tolerance)


def test_a_sparse_gradient_touches_its_rows_only() -> None:
    bag = torch.nn.EmbeddingBag(100, 8, mode="sum", sparse=True)
    before = bag.weight.detach().clone()
    optimizer = ftrie_torch.FTRLProximal(bag.parameters(), l1=0.5, l2=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        bag(torch.tensor([[3, 7, 3], [7, 9, 11]])).square().sum().backward()
        optimizer.step()
    changed = (bag.weight != before).any(1).nonzero().flatten().tolist()
    assert changed == [3, 7, 9, 11]
    assert optimizer.state[bag.weight]["n"].any(1).nonzero().flatten().tolist() == changed


def test_gradients_that_are_sparse_in_several_dimensions_or_empty() -> None:
    a = torch.nn.Parameter(torch.randn(10, 20, dtype=torch.float64).T)  # not contiguous
    (b,) = copies([a])
    dense = gradients_of([a], 20, zero=0.8)
    run([a], dense, ftrie_torch.FTRLProximal([a], l1=0.1))
    run([b], [[g.to_sparse()] for (g,) in dense], ftrie_torch.FTRLProximal([b], l1=0.1))
    assert torch.allclose(a, b, rtol=1e-12)
    before = b.detach().clone()
    run([b], [[torch.sparse_coo_tensor(size=b.shape, dtype=torch.float64)]], ftrie_torch.FTRLProximal([b]))
    assert torch.equal(b, before)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
def test_closures_lower_the_loss_or_raise_it(foreach: bool, maximize: bool) -> None:
    weight = torch.nn.Parameter(torch.randn(10, 5, 2)[..., 0])  # not contiguous
    optimizer = ftrie_torch.FTRLProximal([weight], alpha=0.1, foreach=foreach, maximize=maximize)
    assert "alpha: 0.1" in repr(optimizer)
    x = torch.randn(5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (weight.mv(x) + 1.0).square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(101)]
    assert (losses[-1] > losses[0]) == maximize


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"], indirect=True)
def test_foreach_is_one_tensor_after_the_other(dtype: Any) -> None:
    shapes: list[tuple[int, ...]] = [(3, 4), (5,), (), (0, 2), (2, 3, 2), (300_000,)]
    a = [parameter(*shape, dtype=dtype) for shape in shapes] + [parameter(7, dtype=torch.float32)]
    b = copies(a)
    gradients = gradients_of(a, 10, zero=0.2)
    gradients[3][0] = gradients[4][1] = None
    run(a, gradients, ftrie_torch.FTRLProximal(a, alpha=0.2, l1=0.1, l2=0.1, foreach=True))
    run(b, gradients, ftrie_torch.FTRLProximal(b, alpha=0.2, l1=0.1, l2=0.1, foreach=False))
    for one, other in zip(a, b, strict=True):
        assert torch.allclose(one, other, rtol=1e-6)


def test_16_bit_parameters_learn_as_precisely_as_their_bits_allow() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        a = parameter(100, dtype=dtype)
        b = torch.nn.Parameter(a.detach().double())
        half, double = (
            ftrie_torch.FTRLProximal([a], alpha=0.1, l1=0.1),
            ftrie_torch.FTRLProximal([b], alpha=0.1, l1=0.1),
        )
        for _ in range(1000):  # with n in 16 bits, this would stop to slow down after a few hundred steps
            noise = torch.randn(100, dtype=torch.float64)
            a.grad, b.grad = ((2 * (w.detach() - 1) + noise).to(w.dtype) for w in (a, b))
            half.step(), double.step()
        assert half.state[a]["n"].dtype == torch.float32
        assert torch.allclose(a.double(), b, atol=0.03)


def test_groups_have_options_of_their_own_in_either_form() -> None:
    alone = [parameter(8) for _ in range(4)]
    grouped = copies(alone)
    gradients = gradients_of(alone, 20)
    options: list[dict[str, Any]] = [
        {"alpha": 0.3, "beta": 2.0, "l1": 0.1},
        {"lr": 0.2, "decay": 1.0, "l1": 0.1},
        {"lr": 0.2, "decay": 3.0, "l1": 0.1, "l2": 1.0},
        {"alpha": 0.3, "beta": 0.5, "l1": 0.0, "maximize": True},
    ]
    third = {"params": iter(grouped[2:3]), "lr": 0.2, "decay": 3.0, "l2": 1.0}
    groups = [{"params": grouped[0]}, {"params": grouped[1:2], "lr": 0.2}, third]
    optimizer = ftrie_torch.FTRLProximal(groups, alpha=0.3, beta=2.0, l1=0.1)
    optimizer.add_param_group({"params": grouped[3:], "beta": 0.5, "l1": 0.0, "maximize": True})
    assert ["lr" in group for group in optimizer.param_groups] == [False, True, True, False]
    assert ["alpha" in group for group in optimizer.param_groups] == [True, False, False, True]
    run(grouped, gradients, optimizer)
    for i, own in enumerate(options):
        run(alone[i : i + 1], [[g[i]] for g in gradients], ftrie_torch.FTRLProximal(alone[i : i + 1], **own))
        assert torch.equal(alone[i], grouped[i])


@pytest.mark.parametrize("foreach", [True, False, None])
def test_groups_may_be_empty_and_parameters_may_have_names(foreach: bool | None) -> None:
    layer = torch.nn.Linear(3, 1)
    named = ftrie_torch.FTRLProximal(layer.named_parameters(), foreach=foreach)
    optimizer = ftrie_torch.FTRLProximal([{"params": layer.parameters()}, {"params": []}], foreach=foreach)
    layer(torch.ones(2, 3)).sum().backward()
    named.step(), optimizer.step()
    assert named.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()


def test_without_gradients_or_with_an_lr_of_0_nothing_happens() -> None:
    w = parameter(3)
    before = w.detach().clone()
    optimizer = ftrie_torch.FTRLProximal([w, torch.zeros(2)])
    optimizer.step()
    w.grad = torch.ones_like(w)
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(w, before)
    assert not optimizer.state
    optimizer = ftrie_torch.FTRLProximal([w], lr=0.0)
    run([w], gradients_of([w], 2), optimizer)
    assert torch.equal(w, before)
    optimizer.param_groups[0]["lr"] = 0.5
    run([w], gradients_of([w], 1), optimizer)
    assert not torch.equal(w, before)
    with pytest.raises(KeyError, match="lr"):  # the first form has none to schedule
        torch.optim.lr_scheduler.StepLR(ftrie_torch.FTRLProximal([w], alpha=0.1), 10)


def pickled(optimizer: Any) -> Any:
    return pickle.loads(pickle.dumps(optimizer.state_dict()))


def saved(optimizer: Any) -> Any:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("way", [saved, pickled, lambda optimizer: copy.deepcopy(optimizer.state_dict())])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"], indirect=True)
def test_a_loaded_state_continues_bit_for_bit(dtype: Any, way: Any) -> None:
    a = [parameter(20, dtype=dtype), parameter(4, 3, dtype=dtype), parameter(2, dtype=dtype)]
    optimizer = ftrie_torch.FTRLProximal([{"params": a[:1], "lr": 0.3}, {"params": a[1:]}], alpha=0.2, l1=0.1)
    gradients = gradients_of(a, 30, zero=0.3)
    for each in gradients:
        each[2] = None  # has no state
    run(a, gradients[:15], optimizer)
    optimizer.param_groups[0]["lr"] = 0.1
    state = way(optimizer)
    b = copies(a)
    other = ftrie_torch.FTRLProximal([{"params": b[:1]}, {"params": b[1:], "lr": 5.0}], alpha=9.0)
    other.load_state_dict(state)
    again = copy.deepcopy(state)
    run(a, gradients[15:], optimizer)
    run(b, gradients[15:], other)
    for one, two in zip(a, b, strict=True):
        assert torch.equal(one, two)
    assert repr(again) == repr(state)  # loading shares nothing with what was loaded
    assert repr(other.state_dict()) == repr(optimizer.state_dict())


def test_an_optimizer_can_be_copied_and_pickled_whole_and_takes_states_without_newer_options() -> None:
    w, seen = parameter(5), list[str]()
    optimizer = ftrie_torch.FTRLProximal([w], l1=0.1)
    run([w], gradients_of([w], 3), optimizer)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (its,) = other.param_groups[0]["params"]
        (g,) = gradients_of([its], 1)
        run([its], [g], other)
        assert other.state[its]["n"].equal(optimizer.state[w]["n"] + g[0].square())
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["foreach"], group["maximize"]
    optimizer.load_state_dict(state)
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    run([w], gradients_of([w], 1), optimizer)
    assert seen == ["after"]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("penalties", PENALTIES.values(), ids=PENALTIES)
def test_a_changing_lr_follows_the_definition(penalties: dict[str, float], sparse: bool) -> None:
    w = parameter(5)
    optimizer = ftrie_torch.FTRLProximal([w], lr=0.5, decay=1.5, **penalties)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: (1 + t % 3) / (1 + t // 4))
    gradients, start = gradients_of([w], 20, zero=0.4), w.detach().numpy().copy()
    rates, found = [], []
    for (g,) in gradients:
        rates.append(inverse({"lr": optimizer.param_groups[0]["lr"], "decay": 1.5}))
        run([w], [[sparse_of(g, True) if sparse else g]], optimizer)
        found.append(w.detach().numpy().copy())
        scheduler.step()
    assert len({rate["base"] for rate in rates}) > 5
    given = {"l1": 0.0, "l2": 0.0} | penalties
    wanted = play(start, np.array([g.numpy() for (g,) in gradients]), rates, **given)
    assert np.array(found) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)  # inductor needs a C++ compiler
@pytest.mark.parametrize("foreach", [True, False])
def test_a_compiled_step_is_the_step(foreach: bool, backend: str) -> None:
    if backend == "inductor" and not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    torch.compiler.reset()
    a = [parameter(5, 3, dtype=torch.float32), parameter(7), parameter(3, dtype=torch.bfloat16)]
    b = copies(a)
    gradients = gradients_of(a, 12, zero=0.2)
    groups: Any = lambda p: [{"params": p[:1], "lr": 0.3}, {"params": p[1:]}]  # noqa: E731
    first, second = (
        ftrie_torch.FTRLProximal(groups(p), alpha=0.2, l1=0.1, l2=0.1, foreach=foreach) for p in (a, b)
    )
    run(a, gradients, first)
    run(b, gradients, second, torch.compile(second.step, backend=backend, fullgraph=True))
    for one, two in zip(a, b, strict=True):
        assert torch.allclose(one, two, rtol=1e-5, atol=1e-6)


def test_invalid_options_are_named_in_the_constructor_and_in_groups() -> None:
    optimizer, wrong = ftrie_torch.FTRLProximal([parameter(2)]), torch.tensor(0.1)
    for options, message in (
        ({"alpha": 0.1, "lr": 0.1}, "got alpha and lr; give either alpha and beta, or lr and decay"),
        ({"beta": 1.0, "decay": 0.1}, "got beta and decay; give either alpha and beta, or lr and decay"),
        ({"alpha": 0.0}, "alpha: got 0.0; expected a finite number > 0"),
        ({"beta": -1}, "beta: got -1; expected a finite number >= 0"),
        ({"lr": -0.1}, "lr: got -0.1; expected a finite number >= 0"),
        ({"decay": float("inf")}, "decay: got inf; expected a finite number >= 0"),
        ({"l1": float("nan")}, "l1: got nan; expected a finite number >= 0"),
        ({"l2": "1"}, "l2: got '1'; expected a finite number >= 0"),
        ({"lr": wrong}, "lr: got tensor(0.1000); expected a finite number >= 0"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            ftrie_torch.FTRLProximal([parameter(2)], **options)
        with pytest.raises(ValueError, match=re.escape(message)):
            optimizer.add_param_group({"params": [parameter(2)], **options})
    assert len(optimizer.param_groups) == 1


def test_invalid_parameters_are_refused() -> None:
    for wrong, kind in (
        (torch.zeros(2, dtype=torch.complex64, requires_grad=True), "torch.complex64"),
        (torch.zeros(2, 2).to_sparse().requires_grad_(), "torch.sparse_coo"),
        (torch.zeros(2, dtype=torch.int64), "torch.int64"),
    ):
        with pytest.raises(ValueError, match=f"got a parameter of .*{kind}.*; expected dense real numbers"):
            ftrie_torch.FTRLProximal([parameter(2), wrong])
