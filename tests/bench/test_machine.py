from itertools import chain

import llvmlite.binding as llvm
import pytest
from burnish.commands import machine
from burnish.op_tuner import own_cores


def test_description_names_cpu_and_versions():
    found = machine.describe_machine()
    assert llvm.get_host_cpu_name() in found.cpu
    assert found.cores >= 1
    assert {"python", "llvmlite", "numpy", "llvm"} <= found.versions.keys()
    assert f"{found.cores} cores" in found.describe()


def test_limits_are_plausible_on_any_machine():
    limits = machine.measure_limits((1, 2))
    assert limits.gflops.keys() == limits.read_gbs.keys() == {1, 2}
    assert 1 < limits.gflops[1] < 2000
    assert 0.1 < limits.read_gbs[1] < 5000
    # A second thread may find no free core, but shares nothing with the first that would stop it: where other
    # work met only one of the two, the next measurement tells.
    again = (machine.measure_limits((1, 2)).gflops for _ in range(4))
    assert any(gflops[2] > 0.5 * gflops[1] for gflops in chain([limits.gflops], again))


@pytest.mark.parametrize("floats, accumulators, fused", [(16, 24, True), (8, 12, True), (4, 12, False)])
def test_kernels_are_valid_for_every_vector_width(floats, accumulators, fused):
    text = own_cores.multiply_adds_text(floats, accumulators, fused) + "\n" + machine._read_text(floats)
    module = llvm.parse_assembly(text)
    module.verify()
    operations = "call" if fused else "fmul"
    assert text.count(f" {operations} <{floats} x float>") == accumulators


def test_the_loop_of_arm_copies_no_vectors():
    text = own_cores.multiply_adds_text(4, 24, True, adds_to=True)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
        cpu="cortex-a72", opt=3
    )
    listing = machine.emit_assembly(llvm.parse_assembly(text))
    loop = listing[listing.index("fmla") : listing.rindex("fmla")]
    assert listing.count("fmla") == 24 and "mov" not in loop and "sp" not in loop


def test_the_loop_is_made_of_fused_multiply_adds_in_registers():
    features = llvm.get_host_cpu_features()
    if not (features.get("avx2") and features.get("fma")):
        pytest.skip("the listing is x86's")
    floats, accumulators, fused = own_cores.vector_shape()
    module = llvm.parse_assembly(own_cores.multiply_adds_text(floats, accumulators, fused))
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )
    listing = target.emit_assembly(module)
    assert listing.count("vfmadd") == accumulators
    assert "(%rsp)" not in listing
