"""Does what users of the Python client do, to the flunders of the namespace in the first argument.

The server has forgotten what was before its first revisions: resource version 1 is too old.
"""

import sys

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException

GROUP, VERSION, PLURAL = "wardle.example.com", "v1alpha1", "flunders"


class Flunders:
    """The flunders of one namespace, through CustomObjectsApi."""

    def __init__(self, api_client, namespace):
        self.api = client.CustomObjectsApi(api_client)
        self.place = (GROUP, VERSION, namespace, PLURAL)

    def create(self, name, reference="r", **metadata):
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Flunder",
            "metadata": {"name": name, **metadata},
            "spec": {"reference": reference},
        }
        return self.api.create_namespaced_custom_object(*self.place, body)

    def get(self, name):
        return self.api.get_namespaced_custom_object(*self.place, name)

    def patch(self, name, body, **options):
        return self.api.patch_namespaced_custom_object(*self.place, name, body, **options)

    def replace(self, name, body):
        return self.api.replace_namespaced_custom_object(*self.place, name, body)

    def delete(self, name):
        return self.api.delete_namespaced_custom_object(*self.place, name)

    def list(self, **options):
        return self.api.list_namespaced_custom_object(*self.place, **options)

    def watch(self, watcher=None, **options):
        watcher = watcher or watch.Watch()
        return watcher.stream(self.api.list_namespaced_custom_object, *self.place, **options)


def refused(status, reason, call, *arguments, **options):
    """The call fails with this status, and a Status that gives this reason."""
    try:
        answer = call(*arguments, **options)
    except ApiException as refusal:
        assert refusal.status == status, refusal
        assert reason in f"{refusal.reason} {refusal.body}", refusal
        return
    raise AssertionError(f"{status} was expected, not {answer}")


def version(thing):
    return thing["metadata"]["resourceVersion"]


def summary(event):
    return event["type"], event["object"]["metadata"]["name"], version(event["object"])


def objects_are_made_changed_and_deleted(flunders, _):
    made = flunders.create("a")
    refused(409, '"reason":"AlreadyExists"', flunders.create, "a")
    assert flunders.get("a") == made
    merged = flunders.patch("a", {"metadata": {"labels": {"app": "x"}}}, _content_type="application/merge-patch+json")
    assert merged["metadata"]["labels"] == {"app": "x"} and merged["spec"] == made["spec"]
    operations = [
        {"op": "test", "path": "/spec/reference", "value": "r"},
        {"op": "replace", "path": "/spec/reference", "value": "s"},
    ]
    patched = flunders.patch("a", operations, _content_type="application/json-patch+json")
    assert patched["spec"]["reference"] == "s" and int(version(patched)) > int(version(merged))
    refused(409, '"reason":"Conflict"', flunders.replace, "a", made)
    patched["spec"]["reference"] = "t"
    replaced = flunders.replace("a", patched)
    assert replaced["spec"]["reference"] == "t"
    assert flunders.delete("a")["status"] == "Success"
    refused(404, '"reason":"NotFound"', flunders.delete, "a")
    refused(404, '"reason":"NotFound"', flunders.get, "a")
    refused(422, '"reason":"Invalid"', flunders.create, "a%b")
    refused(400, '"reason":"BadRequest"', flunders.list, label_selector="a=b=c")


def lists_come_in_pages_and_selections(flunders, _):
    for number in range(5):
        flunders.create(f"p{number}", labels={"half": str(number % 2)})
    pages, token = [], None
    while token != "":
        page = flunders.list(limit=2, _continue=token)
        pages.append([item["metadata"]["name"] for item in page["items"]])
        token = page["metadata"].get("continue", "")
    assert pages == [["p0", "p1"], ["p2", "p3"], ["p4"]], pages
    odd = flunders.list(label_selector="half=1")["items"]
    assert [item["metadata"]["name"] for item in odd] == ["p1", "p3"], odd
    one = flunders.list(field_selector="metadata.name=p4")["items"]
    assert [item["metadata"]["name"] for item in one] == ["p4"], one
    for number in range(5):
        flunders.delete(f"p{number}")


def watches_go_on_where_they_were(flunders, _):
    start = version(flunders.list())
    written = [flunders.create("w")]
    written.append(flunders.patch("w", {"spec": {"reference": "s"}}, _content_type="application/merge-patch+json"))
    watcher = watch.Watch()
    seen = []
    for event in flunders.watch(watcher, resource_version=start):
        seen.append(summary(event))
        if len(seen) == 2:
            watcher.stop()
    assert seen == [("ADDED", "w", version(written[0])), ("MODIFIED", "w", version(written[1]))], seen
    assert watcher.resource_version == version(written[1])
    flunders.delete("w")
    # A new one begins where the old one was; it ends by itself.
    rest = [summary(e) for e in flunders.watch(resource_version=watcher.resource_version, timeout_seconds=2)]
    assert [event[:2] for event in rest] == [("DELETED", "w")], rest
    assert int(rest[0][2]) > int(version(written[1]))
    # Without one, it begins with what there is.
    flunders.create("v")
    state = [summary(e)[:2] for e in flunders.watch(timeout_seconds=1)]
    assert state == [("ADDED", "v")], state
    flunders.delete("v")


def a_streamed_list_ends_with_a_bookmark(flunders, resource):
    made = [flunders.create(name) for name in ("s0", "s1")]
    watcher, events = watch.Watch(), []
    options = {
        "namespace": made[0]["metadata"]["namespace"],
        "send_initial_events": True,
        "resource_version_match": "NotOlderThan",
        "allow_watch_bookmarks": True,
    }
    for event in resource.watch(watcher=watcher, timeout=30, **options):
        events.append(event["raw_object"])
        if event["type"] == "BOOKMARK":
            watcher.stop()
    assert events[:2] == made, events
    (bookmark,) = events[2:]
    assert bookmark["kind"] == "Flunder", bookmark
    assert bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true", bookmark
    assert int(version(bookmark)) >= int(version(made[1])), bookmark
    # From there on it is an ordinary watch. Bookmarks are allowed, none has to come.
    flunders.delete("s0")
    rest = flunders.watch(resource_version=version(bookmark), allow_watch_bookmarks=True, timeout_seconds=2)
    rest = [summary(event)[:2] for event in rest if event["type"] != "BOOKMARK"]
    assert rest == [("DELETED", "s0")], rest
    flunders.delete("s1")


def a_forgotten_past_is_gone(flunders, _):
    refused(410, '"reason":"Expired"', flunders.list, resource_version="1", resource_version_match="Exact")
    refused(410, "Expired", lambda: list(flunders.watch(resource_version="1", timeout_seconds=5)))
    # Without a timeout the client tries once more by itself.
    refused(410, "Expired", lambda: list(flunders.watch(resource_version="1")))


def main():
    config.load_kube_config()
    namespace = sys.argv[1]
    with client.ApiClient() as api_client:
        flunders = Flunders(api_client, namespace)
        resource = dynamic.DynamicClient(api_client).resources.get(api_version=f"{GROUP}/{VERSION}", kind="Flunder")
        for scenario in (
            objects_are_made_changed_and_deleted,
            lists_come_in_pages_and_selections,
            watches_go_on_where_they_were,
            a_streamed_list_ends_with_a_bookmark,
            a_forgotten_past_is_gone,
        ):
            scenario(flunders, resource)
            assert flunders.list()["items"] == [], scenario.__name__
            print(scenario.__name__)


main()
