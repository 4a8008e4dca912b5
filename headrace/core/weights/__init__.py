"""Weights, decided: manifests, the cut into buckets, what a node keeps, how a transfer proceeds.

Digests of buckets and tensors are given by the caller as hex; nothing here touches bytes, clocks or the network.
"""

from headrace.core.weights.layout import TensorSpec as TensorSpec
from headrace.core.weights.layout import canonical_name as canonical_name
from headrace.core.weights.layout import canonical_names as canonical_names
from headrace.core.weights.layout import check_layout as check_layout
from headrace.core.weights.layout import layout_difference as layout_difference
from headrace.core.weights.manifest import BucketEntry as BucketEntry
from headrace.core.weights.manifest import FileEntry as FileEntry
from headrace.core.weights.manifest import Manifest as Manifest
from headrace.core.weights.manifest import TensorEntry as TensorEntry
from headrace.core.weights.manifest import VersionId as VersionId
from headrace.core.weights.manifest import manifest_from_json as manifest_from_json
from headrace.core.weights.manifest import manifest_to_json as manifest_to_json
