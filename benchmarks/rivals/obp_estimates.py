"""Open Bandit Pipeline's estimates of what an .npz file holds, as JSON: `PYTHON obp_estimates.py FILE.npz`.

Runs in an environment of its own (Python 3.9, obp 0.4.1), so it imports nothing of ftrie.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from obp.ope import (
    DirectMethod,
    DoublyRobust,
    DoublyRobustWithShrinkage,
    InverseProbabilityWeighting,
    SelfNormalizedInverseProbabilityWeighting,
    SlateIndependentIPS,
    SlateRewardInteractionIPS,
    SwitchDoublyRobust,
)


def estimates(given: np.lib.npyio.NpzFile) -> dict[str, float]:
    """Each estimator on the file's arrays: see benchmarks/off_policy.py, which writes them."""
    rows = {
        "reward": given["reward"],
        "action": given["action"],
        "position": given["position"],
        "pscore": given["pscore"],
        "action_dist": given["action_dist"],
        "estimated_rewards_by_reg_model": given["predicted"],
    }
    limit = float(given["limit"])
    by_rows = {
        "ips": InverseProbabilityWeighting(),
        "snips": SelfNormalizedInverseProbabilityWeighting(),
        "dm": DirectMethod(),
        "dr": DoublyRobust(),
        "switch_dr": SwitchDoublyRobust(tau=limit),
        "dros": DoublyRobustWithShrinkage(lambda_=limit**2),
    }
    found = {name: float(each.estimate_policy_value(**rows)) for name, each in by_rows.items()}
    lists = {
        "slate_id": given["slate_id"],
        "reward": given["list_reward"],
        "position": given["list_position"],
    }
    found["item_position"] = float(
        SlateIndependentIPS(len_list=3).estimate_policy_value(
            **lists,
            pscore_item_position=given["logged"],
            evaluation_policy_pscore_item_position=given["target"],
        )
    )
    found["rips"] = float(
        SlateRewardInteractionIPS(len_list=3).estimate_policy_value(
            **lists,
            pscore_cascade=given["logged_cascade"],
            evaluation_policy_pscore_cascade=given["target_cascade"],
        )
    )
    return found


if __name__ == "__main__":
    print(json.dumps(estimates(np.load(sys.argv[1]))))
