"""The plan in readable form, for people who ask what their engines were started with."""

import yaml

from mmdisagg_operator.api import MultimodalDisaggDeployment
from mmdisagg_operator.plan.render import render
from mmdisagg_operator.plan.site import ClusterSite

from .identity import Manifest, child, child_name


def rendered_plan(deployment: MultimodalDisaggDeployment, site: ClusterSite) -> Manifest:
    """Return the ConfigMap with arguments and environment of each role, secrets masked."""
    plan = {
        f"{role}.yaml": yaml.safe_dump({**launch}, sort_keys=False, width=110)
        for role, launch in render(deployment, site).items()
    }
    return {**child(deployment, "v1 ConfigMap", child_name(deployment, "plan")), "data": plan}
