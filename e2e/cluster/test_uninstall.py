"""The end: what the deployment and the operator leave behind is nothing but what was meant to stay."""

from installed import CRD


def test_a_deployment_goes_with_all_its_objects_while_no_operator_runs(operator, demo):
    """The garbage collector does it: nothing waits for the operator, so a namespace can always be deleted."""
    operator.kubectl("scale", "deployment", "--all", "--replicas=0")
    demo.delete()
    demo.is_gone()
    assert demo.kubectl.names("persistentvolumeclaims") == {"persistentvolumeclaim/embeddings"}


def test_uninstall_leaves_the_crd_and_nothing_else(operator, demo):
    assert operator.objects()
    operator.uninstall()
    assert operator.objects() == set()
    assert operator.cluster.names("crd", CRD)
    assert operator.cluster.names("mmdd", "--all-namespaces") == set()
