"""Images: the resource's own, or the operator's defaults."""

from dataclasses import dataclass

from mmdisagg_operator.api import MultimodalDisaggDeployment, Problem, ResourceError


@dataclass(frozen=True)
class Images:
    """The operator's default images; None where it has none.

    Attributes:
        worker: image of the engines.
        router: image of the router.
    """

    worker: str | None = None
    router: str | None = None


def with_images(deployment: MultimodalDisaggDeployment, defaults: Images) -> MultimodalDisaggDeployment:
    """Return the deployment with every image filled in.

    Raises:
        ResourceError: an image is named by neither.
    """
    spec = deployment.spec
    worker, router = spec.image or defaults.worker, spec.router.image or defaults.router
    named = {"spec.image": worker, "spec.router.image": router}
    missing = [path for path, image in named.items() if not image]
    if missing:
        hint = "required: the operator was installed without a default for it"
        raise ResourceError([Problem(path, hint) for path in missing])
    filled = spec.model_copy(
        update={"image": worker, "router": spec.router.model_copy(update={"image": router})}
    )
    return deployment.model_copy(update={"spec": filled})
