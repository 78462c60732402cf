import gc

import pytest

from neuron_pd.buffers.host_memory import PAGE, HostBuffer


def test_a_buffer_begins_and_ends_at_a_page() -> None:
    buffer = HostBuffer(PAGE + 1)
    assert (buffer.address % PAGE, buffer.nbytes) == (0, 2 * PAGE)


def test_rows_are_where_they_say() -> None:
    buffer = HostBuffer(PAGE)
    rows = buffer.rows(64, 32, 4)
    rows.bytes(1, 2)[:] = b"x" * 64
    assert bytes(buffer.view(64 + 32, 64)) == b"x" * 64
    assert rows.address(3) == buffer.address + 64 + 3 * 32


def test_rows_that_do_not_fit_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        HostBuffer(PAGE).rows(64, PAGE // 4, 4)


def test_a_tensor_keeps_the_memory() -> None:
    torch = pytest.importorskip("torch")
    buffer = HostBuffer(PAGE)
    tensor = buffer.rows(0, 16, 4).tensor(torch.float32)
    assert (tuple(tensor.shape), tensor.data_ptr()) == ((4, 4), buffer.address)
    del buffer
    gc.collect()
    assert float(tensor.fill_(2.0).sum()) == 32.0
