"""What a policy has cost: the stages that it depends on."""

from dreamgym.commands.results import policy_stages, policy_steps
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run


def test_a_policy_pays_for_the_shield_that_it_plays_with(tmp_path):
    run = Run(tmp_path, preset("tiny"))
    run.mark("collect", {"real_transitions": 100})
    run.mark("bc", {})
    run.mark("shield", {"real_transitions": 7})
    assert policy_steps(run, "bc") == 100  # it was tried, and left out
    assert policy_steps(run, "warmstart") == 107  # its stage needs the decision
    run.mark("shield", {"real_transitions": 7, "shield": "valid"})
    assert policy_stages(run, "bc") == ["bc", "shield"]
    assert policy_steps(run, "bc") == policy_steps(run, "warmstart") == 107
