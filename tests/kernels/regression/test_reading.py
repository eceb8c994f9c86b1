"""What users pass, and what becomes of it: shapes, layouts, types, and every message."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from weightloom.errors import ConfigError, KernelError, ShapeError
from weightloom.kernels.regression.problem import GridProblem, GridQuery, PointProblem, PointQuery
from weightloom.kernels.regression.reading import (
    check_duplicates,
    check_ridge,
    is_numpy,
    read_problem,
    read_query,
)

SIZES = st.integers(1, 5)


def rows(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- layouts ---------------------------------------------------------------------------------------


@given(n=SIZES, channels=st.one_of(st.none(), SIZES))
def test_points(n, channels):
    assume(channels != n)  # that is a grid too, and is asked about
    y = rows(n, channels or 1, seed=1)
    given_y = y[:, 0] if channels is None else y
    problem = read_problem((rows(n, 3), rows(n, 2)), given_y)
    assert isinstance(problem, PointProblem)
    assert (problem.size, problem.channels) == (n, channels or 1)
    assert problem.squeeze == (channels is None)
    assert torch.equal(problem.y, y)
    assert problem.shape == problem.query.shape == (n,)


@given(n=SIZES, P=SIZES, channels=st.one_of(st.none(), SIZES))
def test_grid(n, P, channels):
    assume(n != P or channels is not None)
    values = torch.randn(n, P, channels or 1)
    given_values = values[..., 0] if channels is None else values
    problem = read_problem((torch.randn(n, 3), torch.randn(P, 2)), given_values)
    assert isinstance(problem, GridProblem)
    assert (problem.size, problem.channels) == (n * P, channels or 1)
    assert problem.shape == (n, P)
    assert torch.equal(problem.values, values)


@pytest.mark.parametrize("grid", [True, False])
def test_a_square_y_can_be_both_and_must_be_named(grid):
    X, y = (rows(4, 3), rows(4, 2)), rows(4, 4)
    with pytest.raises(ShapeError, match=r"can be a grid or points with 4 channels.*grid=True"):
        read_problem(X, y)
    problem = read_problem(X, y, grid=grid)
    assert isinstance(problem, GridProblem if grid else PointProblem)


def test_images_are_flattened():
    images = torch.arange(24.0).reshape(2, 3, 4)
    problem = read_problem((images, rows(5, 2).float()), torch.zeros(2, 5))
    assert torch.equal(problem.images, images.reshape(2, 12))


def test_one_array_is_split_by_columns():
    X = np.arange(15.0).reshape(3, 5)
    problem = read_problem(X, np.zeros(3), n_condition_features=2)
    np.testing.assert_array_equal(problem.x, X[:, :2])
    np.testing.assert_array_equal(problem.z, X[:, 2:])


def test_a_list_of_rows_is_one_array_and_a_list_of_two_arrays_is_a_pair():
    problem = read_problem([[1, 2, 3], [4, 5, 6]], [1, 2], n_condition_features=1)
    assert problem.z.tolist() == [[2.0, 3.0], [5.0, 6.0]]
    problem = read_problem([[[1, 2], [3, 4]], [[5], [6]]], [1, 2])
    assert problem.z.tolist() == [[5.0], [6.0]]


# -- masks -----------------------------------------------------------------------------------------


@given(data=st.data(), n=SIZES, P=SIZES)
def test_points_of_a_grid_are_its_observed_entries_in_order(data, n, P):
    flags = data.draw(st.lists(st.booleans(), min_size=n * P, max_size=n * P))
    assume(any(flags))
    mask = torch.tensor(flags).reshape(n, P)
    images, coordinates, values = rows(n, 3), rows(P, 2, seed=1), rows(n * P, 2, seed=2)
    values = values.reshape(n, P, 2)
    hidden = torch.where(mask[..., None], values, float("nan"))  # what is not seen may be anything
    problem = read_problem((images, coordinates), hidden, mask=mask)
    seen = [(i, p) for i in range(n) for p in range(P) if mask[i, p]]
    points = problem.points()
    assert problem.size == points.size == len(seen)
    for k, (i, p) in enumerate(seen):
        assert torch.equal(points.x[k], images[i])
        assert torch.equal(points.z[k], coordinates[p])
        assert torch.equal(points.y[k], values[i, p])
    back = problem.spread(points.y)
    assert torch.equal(back.isnan(), ~mask[..., None].expand(n, P, 2))
    assert torch.equal(back[mask], values[mask])


def test_a_mask_that_hides_nothing_is_no_mask():
    X = rows(2, 3), rows(4, 2)
    assert read_problem(X, rows(2, 4), mask=torch.ones(2, 4, dtype=torch.bool)).mask is None
    assert read_problem(X, rows(2, 4), mask=np.eye(2, 4, dtype=bool)).mask is not None


def test_grid_query_as_points():
    query = GridQuery(rows(3, 2), rows(4, 1, seed=1))
    points = query.points()
    for k in range(12):
        assert torch.equal(points.x[k], query.images[k // 4])
        assert torch.equal(points.z[k], query.coordinates[k % 4])
    assert torch.equal(query.points(5, 9).z, points.z[5:9])


# -- types -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "z", "asked", "wanted"),
    [
        (np.float32, np.float32, None, torch.float32),
        (np.float64, np.float32, None, torch.float64),
        (np.int64, np.uint16, None, torch.float64),
        (np.uint8, np.float32, None, torch.float32),
        (np.float16, np.float16, None, torch.float32),
        (np.float32, np.float32, torch.float64, torch.float64),
        (np.float64, np.float64, "float32", torch.float32),
    ],
)
def test_dtype(x, z, asked, wanted):
    X = np.ones((3, 2), dtype=x), np.ones((3, 1), dtype=z)
    problem = read_problem(X, np.ones(3), dtype=asked)
    assert {problem.x.dtype, problem.z.dtype, problem.y.dtype} == {wanted}


def test_data_are_copied_so_that_arrays_may_be_written_over():
    x, z, y = np.ones((3, 2)), np.ones((3, 1)), np.ones(3)
    problem = read_problem((x, z), y)
    x[:], z[:], y[:] = 7, 7, 7
    assert problem.x.max() == problem.z.max() == problem.y.max() == 1


def test_read_only_and_backward_arrays():
    x = np.arange(6.0).reshape(3, 2)[::-1]
    z = np.ones((3, 1))
    z.setflags(write=False)
    assert read_problem((x, z), np.ones(3)).x.tolist() == x.tolist()


def test_gradients_do_not_enter():
    x = rows(3, 2).requires_grad_()
    assert not read_problem((x, rows(3, 1)), rows(3, 1)[:, 0]).x.requires_grad


def test_numpy_or_torch():
    assert is_numpy((np.ones(2), [1]))
    assert not is_numpy((np.ones(2), torch.ones(2)))
    assert is_numpy([[1, 2], [3, 4]])
    assert not is_numpy(torch.ones(2, 2))


# -- queries ---------------------------------------------------------------------------------------


def test_queries_are_read_as_the_fit_was():
    points = read_problem((rows(3, 2), rows(3, 1)), rows(3, 1)[:, 0])
    grid = read_problem((rows(3, 2), rows(4, 1)), rows(3, 4))
    same, other = (rows(5, 2), rows(5, 1)), (rows(2, 2), rows(5, 1))
    assert isinstance(read_query(same, points), PointQuery)
    assert isinstance(read_query(same, grid), GridQuery)
    assert isinstance(read_query(same, points, grid=True), GridQuery)
    assert isinstance(read_query(same, grid, grid=False), PointQuery)
    assert isinstance(read_query(rows(5, 3), grid, n_condition_features=2), PointQuery)
    assert read_query(other, grid).shape == (2, 5)
    with pytest.raises(ShapeError, match=r"x has 2 rows but z has 5.*grid=True"):
        read_query(other, points)


def test_a_query_takes_the_type_of_the_fit():
    problem = read_problem((rows(3, 2).float(), rows(3, 1).float()), np.ones(3))
    assert read_query((rows(2, 2), rows(2, 1)), problem).x.dtype == torch.float32


# -- messages --------------------------------------------------------------------------------------

NAN = float("nan")
BAD_PROBLEMS = [
    ((rows(3, 2), rows(3, 1)), rows(2, 1), {}, ShapeError, r"x has 3 rows.*y has shape \(2, 1\)"),
    ((rows(3, 2), rows(4, 1)), torch.ones(3), {}, ShapeError, r"z has 4, y has shape \(3,\)"),
    ((rows(3, 2), rows(3, 1)), torch.ones(2, 3), {"grid": True}, ShapeError, r"3 images and 3"),
    ((rows(3, 2), rows(4, 1)), torch.ones(3), {"grid": False}, ShapeError, r"as many rows of x, z"),
    ((torch.ones(3), rows(3, 1)), torch.ones(3), {}, ShapeError, r"x has shape \(3,\)"),
    ((rows(3, 2), torch.ones(3)), torch.ones(3), {}, ShapeError, r"z\[:, None\]"),
    (
        (rows(0, 2), rows(0, 1)),
        torch.ones(0),
        {},
        ShapeError,
        r"x has shape \(0, 2\).*empty",
    ),
    ((rows(3, 2),), torch.ones(3), {}, ShapeError, r"tuple of 1.*n_condition_features"),
    (rows(3, 2), torch.ones(3), {}, ShapeError, r"n_condition_features is not set"),
    (rows(3, 2), torch.ones(3), {"n_condition_features": 2}, ShapeError, r"is 2; wanted"),
    (rows(3, 2), None, {"n_condition_features": 1}, ShapeError, r"y is None"),
    ((rows(3, 2) * NAN, rows(3, 1)), torch.ones(3), {}, KernelError, r"x has NaN.*3 of 3 rows"),
    ((rows(3, 2), rows(3, 1) / 0), torch.ones(3), {}, KernelError, r"z has NaN or infinite"),
    ((rows(3, 2), rows(3, 1)), torch.tensor([1, NAN, 2]), {}, KernelError, r"y has NaN.*in row 1;"),
    ((rows(2, 2), rows(3, 1)), torch.ones(2, 3) * NAN, {}, KernelError, r"y has NaN.*2 of 2 rows"),
    (
        (np.array([["a"]]), rows(1, 1)),
        [1.0],
        {},
        KernelError,
        r"x has the type <U1; wanted",
    ),
    ((rows(1, 1) * 1j, rows(1, 1)), [1.0], {}, KernelError, r"x is complex"),
    ((rows(1, 1), rows(1, 1)), [1j], {}, KernelError, r"y is complex"),
    ((rows(1, 1), rows(1, 1)), [1.0], {"dtype": torch.int32}, ConfigError, r"dtype is torch.int32"),
    ((rows(1, 1), rows(1, 1)), [1.0], {"dtype": "f"}, ConfigError, r"dtype is f; wanted"),
    (
        (rows(2, 1) * 1e300, rows(2, 1)),
        [1.0, 1.0],
        {"dtype": torch.float32},
        KernelError,
        "infinite",
    ),
    ((rows(2, 2), rows(3, 1)), rows(2, 3), {"mask": torch.ones(2, 3)}, ShapeError, r"wanted bool"),
    (
        (rows(2, 2), rows(3, 1)),
        rows(2, 3),
        {"mask": [[True] * 2] * 2},
        ShapeError,
        r"\(2, 2\);",
    ),
    ((rows(2, 2), rows(3, 1)), rows(2, 3), {"mask": [[False] * 3] * 2}, ShapeError, r"everywhere"),
    (
        (rows(2, 2), rows(3, 1)),
        rows(2, 3),
        {"mask": [[True] * 3] * 2, "grid": False},
        ShapeError,
        r"masks are for grids",
    ),
    (rows(3, 2), torch.ones(3), {"n_condition_features": 1, "grid": True}, ShapeError, "one array"),
]


@pytest.mark.parametrize(("X", "y", "options", "error", "message"), BAD_PROBLEMS)
def test_bad_problems(X, y, options, error, message):
    with pytest.raises(error, match=message):
        read_problem(X, y, **options)


def test_bad_queries():
    problem = read_problem((rows(3, 2), rows(3, 1)), rows(3, 1)[:, 0])
    with pytest.raises(ShapeError, match=r"x has 4 columns, but the model was fitted with 2"):
        read_query((rows(3, 4), rows(3, 1)), problem)
    with pytest.raises(ShapeError, match=r"coordinates has 2 columns.*fitted with 1"):
        read_query((rows(3, 2), rows(4, 2)), problem, grid=True)
    with pytest.raises(ShapeError, match=r"grid=True needs \(images, coordinates\)"):
        read_query(rows(3, 3), problem, grid=True, n_condition_features=2)
    with pytest.raises(KernelError, match=r"first in row 0"):
        read_query((rows(3, 2) * NAN, rows(3, 1)), problem)


@pytest.mark.parametrize("ridge", [-1e-9, NAN, float("inf"), "much", None])
def test_bad_ridges(ridge):
    with pytest.raises(ConfigError, match=r"ridge is .*; wanted a finite number, 0 or more"):
        check_ridge(ridge)


@pytest.mark.parametrize("ridge", [0, 1e-3, np.float32(2), torch.tensor(1.0)])
def test_good_ridges(ridge):
    assert check_ridge(ridge) == float(ridge)


# -- duplicates ------------------------------------------------------------------------------------


def test_repeated_points_are_named():
    x, z = rows(6, 2), rows(6, 1)
    check_duplicates(read_problem((x, z), torch.ones(6)))
    x[4] = x[1]
    check_duplicates(read_problem((x, z), torch.ones(6)))  # the same image elsewhere is no repeat
    z[4] = z[1]
    with pytest.raises(KernelError, match=r"row 1 and row 4 are the same point.*ridge is 0"):
        check_duplicates(read_problem((x, z), torch.ones(6)))


def test_repeated_points_of_a_grid_are_named():
    images, coordinates = rows(4, 3), rows(5, 2)
    check_duplicates(read_problem((images, coordinates), rows(4, 5)))
    images[3] = images[1]
    with pytest.raises(KernelError, match=r"image 1 at coordinate 0 and image 3 at coordinate 0"):
        check_duplicates(read_problem((images, coordinates), rows(4, 5)))
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1, :3] = False
    mask[3, 3:] = False  # the two copies are never seen at the same place
    check_duplicates(read_problem((images, coordinates), rows(4, 5), mask=mask))
    mask[3, 4] = True
    with pytest.raises(KernelError, match=r"image 1 at coordinate 4 and image 3 at coordinate 4"):
        check_duplicates(read_problem((images, coordinates), rows(4, 5), mask=mask))
