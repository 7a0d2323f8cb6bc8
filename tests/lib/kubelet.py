"""What a kubelet makes of a generated pod's container, where there is none."""

from tests.lib.front import Obj


def variables(pod: Obj) -> dict[str, str]:
    """The environment; $$ stands for one $."""
    (container,) = pod["spec"]["containers"]
    return {one["name"]: one["value"].replace("$$", "$") for one in container["env"]}


def files(pod: Obj) -> dict[str, str]:
    """What the downward API mounts, by path."""
    (container,) = pod["spec"]["containers"]
    found = dict[str, str]()
    for volume in pod["spec"]["volumes"]:
        for item in volume.get("downwardAPI", {}).get("items", []):
            mounts = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
            (path,) = [one["mountPath"] for one in mounts if one["subPath"] == item["path"]]
            annotation = item["fieldRef"]["fieldPath"].split("'")[1]
            found[path] = pod["metadata"]["annotations"][annotation]
    return found
