"""What a run's memory says of the model: what is left beside its state are activations."""

from types import SimpleNamespace

from topout.schema.measures import Memory
from topout.study.seen_memory import seen_memory

GB = 10**9


def measures(memory, pipeline=None, tensor_parallel=None):
    of_input = SimpleNamespace(batch_size=8)
    return SimpleNamespace(memory=memory, pipeline=pipeline, tensor_parallel=tensor_parallel, input=of_input)


def test_activations_are_what_the_peak_leaves():
    memory = Memory(parameter_bytes=1 * GB, gradient_bytes=1 * GB, optimizer_bytes=2 * GB, peak_device_bytes=20 * GB,
                    device_total_bytes=80 * GB)  # fmt: skip
    found = seen_memory(measures(memory), [])
    assert found["activation_bytes"] == 2 * GB
    # another system may have another device
    assert "device_bytes" not in found


def test_without_a_device_activations_are_not_known():
    found = seen_memory(measures(Memory(parameter_bytes=1 * GB)), [])
    assert found == {"parameter_bytes": 1e9, "gradient_bytes": 1e9, "optimizer_bytes": 0.0}


def test_a_run_that_split_the_model_says_nothing_of_the_whole():
    part = Memory(parameter_bytes=1 * GB)
    split = measures(part, pipeline=object()), measures(part, tensor_parallel=object())
    for seen in (*split, measures(Memory(parameter_bytes=1 * GB, is_sharded=True))):
        notes = []
        assert seen_memory(seen, notes) == {}
        assert notes == ["Ranks held parts of the model, so what the whole takes is not known; set job.memory."]
    notes = []
    assert seen_memory(measures(Memory()), notes) == {}
    assert notes == []
