package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
)

var server *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(cluster.RunWithAPIServer(m, &server)) }

// edits are changes to a valid object, by path; nil removes the field.
type edits map[string]any

// pairs are all rules of the schema, each with an object that it accepts and one that it rejects. Both objects satisfy all other rules. TestEveryRuleHasPair
// compares the list with the schema. The message of a CEL rule is part of its name.
var pairs = []struct {
	rule    string
	accept  edits
	reject  edits
	message string
}{
	{rule: "spec required", reject: edits{"spec": nil}, message: "Required value"},

	{rule: "spec.nodeClassRef required", reject: edits{"spec.nodeClassRef": nil}, message: "Required value"},
	{
		rule:   "spec.nodeClassRef rule: nodeClassRef must name the cloud provider's own node class, such as karpenter.k8s.aws EC2NodeClass, not a GPUNodeClass",
		accept: edits{"spec.nodeClassRef.group": "karpenter.azure.com", "spec.nodeClassRef.kind": "AKSNodeClass"},
		reject: edits{"spec.nodeClassRef.group": v1alpha1.Group, "spec.nodeClassRef.kind": v1alpha1.Kind},
	},
	{rule: "spec.nodeClassRef.group required", reject: edits{"spec.nodeClassRef.group": nil}, message: "Required value"},
	{rule: "spec.nodeClassRef.group minLength", accept: edits{"spec.nodeClassRef.group": "g"}, reject: edits{"spec.nodeClassRef.group": ""}, message: "at least 1 chars"},
	{
		rule:    "spec.nodeClassRef.group maxLength",
		accept:  edits{"spec.nodeClassRef.group": long(253)},
		reject:  edits{"spec.nodeClassRef.group": long(254)},
		message: "may not be more than 253",
	},
	{
		rule:   "spec.nodeClassRef.group rule: group is the part of apiVersion before the slash, for instance karpenter.k8s.aws",
		reject: edits{"spec.nodeClassRef.group": "karpenter.k8s.aws/v1"},
	},
	{rule: "spec.nodeClassRef.kind required", reject: edits{"spec.nodeClassRef.kind": nil}, message: "Required value"},
	{rule: "spec.nodeClassRef.kind minLength", accept: edits{"spec.nodeClassRef.kind": "K"}, reject: edits{"spec.nodeClassRef.kind": ""}, message: "at least 1 chars"},
	{
		rule:    "spec.nodeClassRef.kind maxLength",
		accept:  edits{"spec.nodeClassRef.kind": long(63)},
		reject:  edits{"spec.nodeClassRef.kind": long(64)},
		message: "may not be more than 63",
	},
	{rule: "spec.nodeClassRef.name required", reject: edits{"spec.nodeClassRef.name": nil}, message: "Required value"},
	{rule: "spec.nodeClassRef.name minLength", accept: edits{"spec.nodeClassRef.name": "n"}, reject: edits{"spec.nodeClassRef.name": ""}, message: "at least 1 chars"},
	{
		rule:    "spec.nodeClassRef.name maxLength",
		accept:  edits{"spec.nodeClassRef.name": long(253)},
		reject:  edits{"spec.nodeClassRef.name": long(254)},
		message: "may not be more than 253",
	},

	{rule: "spec.sharing required", reject: edits{"spec.sharing": nil}, message: "Required value"},
	{
		rule:   "spec.sharing rule: strategy TimeSlicing needs replicas, the number of pods that share one GPU (2 to 128)",
		reject: edits{"spec.sharing.replicas": nil},
	},
	{
		rule:   "spec.sharing rule: strategy None gives whole GPUs: remove replicas, or use strategy TimeSlicing",
		accept: whole(nil),
		reject: whole(edits{"spec.sharing.replicas": 10}),
	},
	{
		rule:   "spec.sharing rule: strategy None gives whole GPUs: remove overrides, or use strategy TimeSlicing",
		accept: whole(edits{"spec.sharing.overrides": []any{}}),
		reject: whole(edits{"spec.sharing.overrides": overrides(edits{})}),
	},
	{
		rule:   "spec.sharing rule: strategy None gives whole GPUs, which are called nvidia.com/gpu: remove resourceName, or use strategy TimeSlicing",
		accept: whole(edits{"spec.sharing.resourceName": "nvidia.com/gpu"}),
		reject: whole(edits{"spec.sharing.resourceName": "nvidia.com/gpu.shared"}),
	},
	{
		rule:   "spec.sharing rule: strategy None gives whole GPUs, and a pod may request several: remove requestsAboveOne, or use strategy TimeSlicing",
		accept: whole(nil),
		reject: whole(edits{"spec.sharing.requestsAboveOne": "Refuse"}),
	},
	{
		rule:   "spec.sharing rule: strategy MPS needs replicas, the number of pods that share one GPU (2 to 48)",
		accept: edits{"spec.sharing.strategy": "MPS"},
		reject: edits{"spec.sharing.strategy": "MPS", "spec.sharing.replicas": nil},
	},
	{
		rule:   "spec.sharing rule: an MPS server has at most 48 clients: lower replicas to 48, or use strategy TimeSlicing",
		accept: edits{"spec.sharing.strategy": "MPS", "spec.sharing.replicas": 48},
		reject: edits{"spec.sharing.strategy": "MPS", "spec.sharing.replicas": 49},
	},
	{
		rule:   "spec.sharing rule: an MPS server has at most 48 clients: lower maxReplicas to 48, or use strategy TimeSlicing",
		accept: edits{"spec.sharing.strategy": "MPS", "spec.sharing.maxReplicas": 48},
		reject: edits{"spec.sharing.strategy": "MPS", "spec.sharing.maxReplicas": 49},
	},
	{
		rule:   "spec.sharing rule: an MPS server has at most 48 clients: lower the replicas of overrides to 48, or use strategy TimeSlicing",
		accept: edits{"spec.sharing.strategy": "MPS", "spec.sharing.overrides": overrides(edits{"replicas": 48})},
		reject: edits{"spec.sharing.strategy": "MPS", "spec.sharing.overrides": overrides(edits{"replicas": 49})},
	},
	{
		rule:   "spec.sharing rule: strategy MPS limits each replica, and more replicas would not raise the limits of a pod: remove requestsAboveOne, or set it to Refuse",
		accept: edits{"spec.sharing.strategy": "MPS", "spec.sharing.requestsAboveOne": "Refuse"},
		reject: edits{"spec.sharing.strategy": "MPS", "spec.sharing.requestsAboveOne": "Allow"},
	},
	{
		rule:   "spec.sharing rule: mps is for strategy MPS: remove it, or use strategy MPS",
		accept: withMPS(edits{}),
		reject: edits{"spec.sharing.mps": map[string]any{}},
	},
	{
		rule:    "spec.sharing.mps.memoryOvercommitPercent minimum",
		accept:  withMPS(edits{"spec.sharing.mps.memoryOvercommitPercent": 100}),
		reject:  withMPS(edits{"spec.sharing.mps.memoryOvercommitPercent": 99}),
		message: "greater than or equal to 100",
	},
	{
		rule:    "spec.sharing.mps.memoryOvercommitPercent maximum",
		accept:  withMPS(edits{"spec.sharing.mps.memoryOvercommitPercent": 400}),
		reject:  withMPS(edits{"spec.sharing.mps.memoryOvercommitPercent": 401}),
		message: "less than or equal to 400",
	},
	{
		rule:    "spec.sharing.mps.activeThreadPercent minimum",
		accept:  withMPS(edits{"spec.sharing.mps.activeThreadPercent": 1}),
		reject:  withMPS(edits{"spec.sharing.mps.activeThreadPercent": 0}),
		message: "greater than or equal to 1",
	},
	{
		rule:    "spec.sharing.mps.activeThreadPercent maximum",
		accept:  withMPS(edits{"spec.sharing.mps.activeThreadPercent": 100}),
		reject:  withMPS(edits{"spec.sharing.mps.activeThreadPercent": 101}),
		message: "less than or equal to 100",
	},
	{
		rule:    "spec.sharing.mps.users enum",
		accept:  withMPS(edits{"spec.sharing.mps.users": "Single"}),
		reject:  withMPS(edits{"spec.sharing.mps.users": "None"}),
		message: `supported values: "Any", "Single"`,
	},
	{
		rule:   "spec.sharing rule: strategy MIG needs mig.layouts, the instances that GPUs are divided into",
		accept: withMIG(nil),
		reject: edits{"spec.sharing.strategy": "MIG"},
	},
	{
		rule:   "spec.sharing rule: mig is for strategy MIG: remove it, or use strategy MIG",
		accept: withMIG(edits{"spec.sharing.replicas": nil}),
		reject: withMIG(edits{"spec.sharing.strategy": "TimeSlicing"}),
	},
	{
		rule:   "spec.sharing rule: the instances of strategy MIG have equally many replicas: remove maxReplicas, or use strategy TimeSlicing",
		accept: withMIG(edits{"spec.sharing.replicas": 2}),
		reject: withMIG(edits{"spec.sharing.replicas": 2, "spec.sharing.maxReplicas": 4}),
	},
	{
		rule:   "spec.sharing rule: strategy MIG has a layout for each GPU: remove overrides, or use strategy TimeSlicing",
		accept: withMIG(edits{"spec.sharing.overrides": []any{}}),
		reject: withMIG(edits{"spec.sharing.overrides": overrides(edits{"gpuName": "a100"})}),
	},
	{
		rule:   "spec.sharing rule: resources of strategy MIG are named after the profiles of instances: remove resourceName, or set mig.naming to Single",
		accept: withMIG(edits{"spec.sharing.mig.naming": "Single", "spec.sharing.resourceName": "nvidia.com/gpu"}),
		reject: withMIG(edits{"spec.sharing.resourceName": "nvidia.com/gpu"}),
	},
	{
		rule:   "spec.sharing rule: an instance that one pod has for itself is called nvidia.com/gpu: remove resourceName, or set replicas",
		accept: withMIG(edits{"spec.sharing.mig.naming": "Single", "spec.sharing.resourceName": "nvidia.com/gpu.shared", "spec.sharing.replicas": 2}),
		reject: withMIG(edits{"spec.sharing.mig.naming": "Single", "spec.sharing.resourceName": "nvidia.com/gpu.shared", "spec.sharing.replicas": nil}),
	},
	{rule: "spec.sharing.mig.naming enum", accept: withMIG(edits{"spec.sharing.mig.naming": "Mixed"}), reject: withMIG(edits{"spec.sharing.mig.naming": "Both"}), message: `supported values: "Mixed", "Single"`},
	{rule: "spec.sharing.mig.layouts required", reject: withMIG(edits{"spec.sharing.mig.layouts": nil}), message: "Required value"},
	{rule: "spec.sharing.mig.layouts minItems", accept: withMIG(nil), reject: withMIG(edits{"spec.sharing.mig.layouts": []any{}}), message: "should have at least 1 items"},
	{
		rule:    "spec.sharing.mig.layouts maxItems",
		accept:  withMIG(edits{"spec.sharing.mig.layouts": layouts(make([]edits, 32)...)}),
		reject:  withMIG(edits{"spec.sharing.mig.layouts": layouts(make([]edits, 33)...)}),
		message: "must have at most 32 items",
	},
	{rule: "spec.sharing.mig.layouts[].gpuName required", reject: withLayout(edits{"gpuName": nil}), message: "Required value"},
	{rule: "spec.sharing.mig.layouts[].gpuName minLength", accept: withLayout(edits{"gpuName": "a"}), reject: withLayout(edits{"gpuName": ""}), message: "should be at least 1 chars long"},
	{
		rule:    "spec.sharing.mig.layouts[].gpuName maxLength",
		accept:  withLayout(edits{"gpuName": strings.Repeat("a", 63)}),
		reject:  withLayout(edits{"gpuName": strings.Repeat("a", 64)}),
		message: "may not be more than 63",
	},
	{rule: "spec.sharing.mig.layouts[].gpuMemoryMiB minimum", accept: withLayout(edits{"gpuMemoryMiB": 1}), reject: withLayout(edits{"gpuMemoryMiB": 0}), message: "greater than or equal to 1"},
	{
		rule:    "spec.sharing.mig.layouts[].gpuMemoryMiB maximum",
		accept:  withLayout(edits{"gpuMemoryMiB": 16777216}),
		reject:  withLayout(edits{"gpuMemoryMiB": 16777217}),
		message: "less than or equal to 16777216",
	},
	{rule: "spec.sharing.mig.layouts[] rule: a layout has one of profile, instances and groups", accept: withLayout(edits{"profile": nil, "instances": several(nil)}), reject: withLayout(edits{"instances": several(nil)})},
	{rule: "spec.sharing.mig rule: with naming Single pods could not tell the instances of several profiles apart: set the profile of each layout, or use naming Mixed", accept: withMIG(edits{"spec.sharing.mig": map[string]any{"naming": "Mixed", "layouts": layouts(edits{"profile": nil, "instances": several(nil)})}}), reject: withMIG(edits{"spec.sharing.mig": map[string]any{"naming": "Single", "layouts": layouts(edits{"profile": nil, "instances": several(nil)})}})},
	{rule: "spec.sharing rule: with backend DRA the instances of several profiles are not shared: remove replicas, set the profile of each layout, or use backend DevicePlugin", accept: withMIG(edits{"spec.sharing.backend": "DRA", "spec.sharing.replicas": nil, "spec.sharing.mig": map[string]any{"layouts": layouts(edits{"profile": nil, "instances": several(nil)})}}), reject: withMIG(edits{"spec.sharing.backend": "DRA", "spec.sharing.replicas": 2, "spec.sharing.mig": map[string]any{"layouts": layouts(edits{"profile": nil, "instances": several(nil)})}})},
	{rule: "spec.sharing.mig.layouts[].instances minItems", accept: withInstances(nil), reject: withInstances(), message: "should have at least 1 items"},
	{rule: "spec.sharing.mig.layouts[].instances maxItems", accept: withInstances(profilesUpTo(8)...), reject: withInstances(profilesUpTo(9)...), message: "must have at most 8 items"},
	{rule: "spec.sharing.mig.layouts[].instances unique profile", accept: withInstances(profilesUpTo(2)...), reject: withInstances(nil, nil), message: "Duplicate value"},
	{rule: "spec.sharing.mig.layouts[].instances[].profile required", reject: withInstances(edits{"profile": nil}), message: "Required value"},
	{rule: "spec.sharing.mig.layouts[].instances[].profile maxLength", accept: withInstances(edits{"profile": "1g.5gb+" + strings.Repeat("a", 25)}), reject: withInstances(edits{"profile": "1g.5gb+" + strings.Repeat("a", 26)}), message: "may not be more than 32"},
	{rule: "spec.sharing.mig.layouts[].instances[].profile pattern", accept: withInstances(edits{"profile": "1g.24gb+me.all"}), reject: withInstances(edits{"profile": "1c.2g.10gb"}), message: "should match"},
	{rule: "spec.sharing.mig.layouts[].instances[].count required", reject: withInstances(edits{"count": nil}), message: "Required value"},
	{rule: "spec.sharing.mig.layouts[].instances[].count minimum", accept: withInstances(edits{"count": 1}), reject: withInstances(edits{"count": 0}), message: "greater than or equal to 1"},
	{rule: "spec.sharing.mig.layouts[].instances[].count maximum", accept: withInstances(edits{"count": 16}), reject: withInstances(edits{"count": 17}), message: "less than or equal to 16"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances minItems", accept: withGroupOf(nil), reject: withGroupOf(), message: "should have at least 1 items"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances maxItems", accept: withGroupOf(profilesUpTo(8)...), reject: withGroupOf(profilesUpTo(9)...), message: "must have at most 8 items"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances unique profile", accept: withGroupOf(profilesUpTo(2)...), reject: withGroupOf(nil, nil), message: "Duplicate value"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances[].profile required", reject: withGroupOf(edits{"profile": nil}), message: "Required value"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances[].profile maxLength", accept: withGroupOf(edits{"profile": "1g.5gb+" + strings.Repeat("a", 25)}), reject: withGroupOf(edits{"profile": "1g.5gb+" + strings.Repeat("a", 26)}), message: "may not be more than 32"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances[].profile pattern", accept: withGroupOf(edits{"profile": "1g.24gb+me.all"}), reject: withGroupOf(edits{"profile": "1c.2g.10gb"}), message: "should match"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances[].count required", reject: withGroupOf(edits{"count": nil}), message: "Required value"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances[].count minimum", accept: withGroupOf(edits{"count": 1}), reject: withGroupOf(edits{"count": 0}), message: "greater than or equal to 1"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances[].count maximum", accept: withGroupOf(edits{"count": 16}), reject: withGroupOf(edits{"count": 17}), message: "less than or equal to 16"},
	{rule: "spec.sharing.mig.layouts[].groups minItems", accept: withGroups(nil), reject: withGroups(), message: "should have at least 1 items"},
	{rule: "spec.sharing.mig.layouts[].groups maxItems", accept: withGroups(make([]edits, 16)...), reject: withGroups(make([]edits, 17)...), message: "must have at most 16 items"},
	{rule: "spec.sharing.mig.layouts[].groups[].gpus required", reject: withGroups(edits{"gpus": nil}), message: "Required value"},
	{rule: "spec.sharing.mig.layouts[].groups[].gpus minimum", accept: withGroups(edits{"gpus": 1}), reject: withGroups(edits{"gpus": 0}), message: "greater than or equal to 1"},
	{rule: "spec.sharing.mig.layouts[].groups[].gpus maximum", accept: withGroups(edits{"gpus": 16}), reject: withGroups(edits{"gpus": 17}), message: "less than or equal to 16"},
	{rule: "spec.sharing.mig.layouts[].groups[].instances required", reject: withGroups(edits{"instances": nil}), message: "Required value"},
	{
		rule:    "spec.sharing.mig.layouts[].profile maxLength",
		accept:  withLayout(edits{"profile": "1g.5gb+" + strings.Repeat("a", 25)}),
		reject:  withLayout(edits{"profile": "1g.5gb+" + strings.Repeat("a", 26)}),
		message: "may not be more than 32",
	},
	{rule: "spec.sharing.mig.layouts[].profile pattern", accept: withLayout(edits{"profile": "1g.24gb+me.all"}), reject: withLayout(edits{"profile": "1c.2g.10gb"}), message: "should match"},
	{
		rule:   "spec.sharing rule: strategy MemorySlots needs memory.sizes, the sizes of the slots that pods can request, for instance 2Gi, 4Gi and 8Gi",
		accept: withSlots(edits{}),
		reject: withSlots(edits{"spec.sharing.memory": nil}),
	},
	{
		rule:   "spec.sharing rule: memory is for strategy MemorySlots: remove it, or use strategy MemorySlots",
		reject: edits{"spec.sharing.memory": map[string]any{"sizes": []any{"2Gi"}}},
	},
	{
		rule:   "spec.sharing rule: strategy MemorySlots shares GPUs by device memory: remove replicas, maxReplicas and overrides, or use strategy TimeSlicing",
		accept: withSlots(edits{"spec.sharing.overrides": []any{}}),
		reject: withSlots(edits{"spec.sharing.replicas": 10}),
	},
	{
		rule:   "spec.sharing rule: strategy MemorySlots names resources after the sizes of slots, for instance nvidia.com/gpu-2gb: remove resourceName",
		accept: withSlots(edits{}),
		reject: withSlots(edits{"spec.sharing.resourceName": "nvidia.com/gpu"}),
	},
	{
		rule:   "spec.sharing rule: with strategy MemorySlots a container has one slot, since two might be on two GPUs: remove requestsAboveOne, or set it to Refuse",
		accept: withSlots(edits{"spec.sharing.requestsAboveOne": "Refuse"}),
		reject: withSlots(edits{"spec.sharing.requestsAboveOne": "Allow"}),
	},
	{rule: "spec.sharing.memory.sizes required", accept: withSlots(edits{}), reject: withSlots(edits{"spec.sharing.memory.sizes": nil}), message: "Required value"},
	{rule: "spec.sharing.memory.sizes minItems", accept: slotSizes("2Gi"), reject: slotSizes(), message: "at least 1 items"},
	{
		rule:    "spec.sharing.memory.sizes maxItems",
		accept:  slotSizes("1Gi", "2Gi", "3Gi", "4Gi", "5Gi", "6Gi", "7Gi", "8Gi"),
		reject:  slotSizes("1Gi", "2Gi", "3Gi", "4Gi", "5Gi", "6Gi", "7Gi", "8Gi", "9Gi"),
		message: "at most 8 items",
	},
	{
		rule:   "spec.sharing.memory.sizes rule: sizes must be different and in ascending order, for instance 2Gi, 4Gi and 8Gi",
		accept: slotSizes("1536Mi", "2Gi", "8Gi"),
		reject: slotSizes("1Gi", "2048Mi", "2Gi"),
	},
	{rule: "spec.sharing.memory.sizes rule: sizes are 256Mi to 1024Gi", accept: slotSizes("256Mi", "1024Gi"), reject: slotSizes("255Mi", "2Gi")},
	{rule: "spec.sharing.memory.sizes[] maxLength", accept: slotSizes("1024000Mi"), reject: slotSizes("10485760000Mi"), message: "may not be more than 10"},
	{rule: "spec.sharing.memory.sizes[] pattern", accept: slotSizes("2Gi"), reject: slotSizes("2G"), message: "should match"},
	{rule: "spec.sharing.memory.reserve maxLength", accept: withReserve("1024Mi"), reject: withReserve("00000000512Mi"), message: "may not be more than 10"},
	{rule: "spec.sharing.memory.reserve pattern", accept: withReserve("0Mi"), reject: withReserve("512"), message: "should match"},
	{rule: "spec.sharing.memory.reserve rule: reserve is at most 64Gi", accept: withReserve("64Gi"), reject: withReserve("65Gi")},
	{
		rule:    "spec.sharing.memory.enforcement enum",
		accept:  withSlots(edits{"spec.sharing.memory.enforcement": "MPS"}),
		reject:  withSlots(edits{"spec.sharing.memory.enforcement": "Hard"}),
		message: `supported values: "None", "Watch", "MPS"`,
	},
	{rule: "spec.sharing.strategy required", reject: edits{"spec.sharing.strategy": nil}, message: "Required value"},
	{rule: "spec.sharing.backend enum", accept: edits{"spec.sharing.backend": "DevicePlugin"}, reject: edits{"spec.sharing.backend": "CDI"}, message: `supported values: "DevicePlugin", "DRA", "NVIDIADRA"`},
	{
		rule:   "spec.sharing rule: with backend NVIDIADRA, NVIDIA's driver gives pods whole GPUs or shares of them: use strategy None, or strategy TimeSlicing with the number of its consumableShares as replicas",
		accept: whole(edits{"spec.sharing.backend": "NVIDIADRA"}),
		reject: withMIG(edits{"spec.sharing.backend": "NVIDIADRA"}),
	},
	{
		rule:   "spec.sharing rule: backend NVIDIADRA serves nvidia.com/gpu, the resource of NVIDIA's DeviceClass: remove resourceName",
		accept: edits{"spec.sharing.backend": "NVIDIADRA", "spec.sharing.resourceName": "nvidia.com/gpu"},
		reject: edits{"spec.sharing.backend": "NVIDIADRA", "spec.sharing.resourceName": "nvidia.com/gpu.shared"},
	},
	{
		rule:   "spec.sharing rule: NVIDIA's driver has one number of shares for all GPUs: remove maxReplicas, or use backend DevicePlugin",
		accept: edits{"spec.sharing.backend": "NVIDIADRA"},
		reject: edits{"spec.sharing.backend": "NVIDIADRA", "spec.sharing.maxReplicas": int64(20)},
	},
	{
		rule:   "spec.sharing rule: NVIDIA's driver has one number of shares for all GPUs: remove overrides, or use another GPUNodeClass for the other GPUs",
		accept: edits{"spec.sharing.backend": "NVIDIADRA", "spec.sharing.overrides": []any{}},
		reject: edits{"spec.sharing.backend": "NVIDIADRA", "spec.sharing.overrides": []any{map[string]any{"gpuName": "t4", "replicas": int64(2)}}},
	},
	{
		rule:   "spec.sharing rule: with backend NVIDIADRA each share of a container is on a GPU of its own: remove requestsAboveOne, or set it to Refuse",
		accept: edits{"spec.sharing.backend": "NVIDIADRA", "spec.sharing.requestsAboveOne": "Refuse"},
		reject: edits{"spec.sharing.backend": "NVIDIADRA", "spec.sharing.requestsAboveOne": "Allow"},
	},
	{
		rule:   "spec.sharing rule: backend DRA shares GPUs by time-slicing or as MIG instances: use strategy TimeSlicing or MIG, or backend DevicePlugin",
		accept: withMIG(edits{"spec.sharing.backend": "DRA"}),
		reject: withMPS(edits{"spec.sharing.backend": "DRA"}),
	},
	{
		rule:   "spec.sharing rule: backend DRA serves nvidia.com/gpu.shared, the resource of its DeviceClass: remove resourceName, or use backend DevicePlugin",
		accept: withMIG(edits{"spec.sharing.backend": "DRA", "spec.sharing.resourceName": "nvidia.com/gpu", "spec.sharing.mig": map[string]any{"naming": "Single", "layouts": layouts(nil)}}),
		reject: edits{"spec.sharing.backend": "DRA", "spec.sharing.resourceName": "nvidia.com/gpu"},
	},
	{
		rule:   "spec.sharing rule: with backend DRA each replica of a container is on a GPU of its own: remove requestsAboveOne, or set it to Refuse",
		accept: withMIG(edits{"spec.sharing.backend": "DRA", "spec.sharing.replicas": nil, "spec.sharing.requestsAboveOne": "Allow"}),
		reject: withMIG(edits{"spec.sharing.backend": "DRA", "spec.sharing.requestsAboveOne": "Allow"}),
	},
	{
		rule:   "spec.sharing rule: backend DRA serves nvidia.com/gpu.shared, the resource of its DeviceClass: remove resourceName, or use backend DevicePlugin",
		accept: edits{"spec.sharing.backend": "DRA", "spec.sharing.resourceName": "nvidia.com/gpu.shared"},
		reject: edits{"spec.sharing.backend": "DRA", "spec.sharing.resourceName": "nvidia.com/gpu"},
	},
	{
		rule:   "spec.sharing rule: with backend DRA all GPUs of a name have equally many replicas: remove maxReplicas, or use backend DevicePlugin",
		accept: edits{"spec.sharing.backend": "DRA"},
		reject: edits{"spec.sharing.backend": "DRA", "spec.sharing.maxReplicas": int64(20)},
	},
	{
		rule:   "spec.sharing rule: with backend DRA each replica of a container is on a GPU of its own: remove requestsAboveOne, or set it to Refuse",
		accept: edits{"spec.sharing.backend": "DRA", "spec.sharing.requestsAboveOne": "Refuse"},
		reject: edits{"spec.sharing.backend": "DRA", "spec.sharing.requestsAboveOne": "Allow"},
	},
	{
		rule:   "spec.sharing rule: backend DRA serves shared GPUs: raise the replicas of overrides to 2, or use backend DevicePlugin",
		accept: edits{"spec.sharing.backend": "DRA", "spec.sharing.overrides": []any{map[string]any{"gpuName": "t4", "replicas": int64(2)}}},
		reject: edits{"spec.sharing.backend": "DRA", "spec.sharing.overrides": []any{map[string]any{"gpuName": "t4", "replicas": int64(1)}}},
	},
	{rule: "spec.sharing.strategy enum", reject: edits{"spec.sharing.strategy": "DRA"}, message: `supported values: "TimeSlicing", "MPS", "MIG", "MemorySlots", "None"`},
	{rule: "spec.sharing.strategy enum", accept: whole(nil), reject: edits{"spec.sharing.strategy": ""}, message: `supported values: "TimeSlicing", "MPS", "MIG", "MemorySlots", "None"`},
	{rule: "spec.sharing.replicas minimum", accept: edits{"spec.sharing.replicas": 2}, reject: edits{"spec.sharing.replicas": 1}, message: "greater than or equal to 2"},
	{rule: "spec.sharing.replicas maximum", accept: edits{"spec.sharing.replicas": 128}, reject: edits{"spec.sharing.replicas": 129}, message: "less than or equal to 128"},
	{
		rule:   "spec.sharing rule: strategy None gives whole GPUs: remove maxReplicas, or use strategy TimeSlicing",
		accept: whole(nil),
		reject: whole(edits{"spec.sharing.maxReplicas": 10}),
	},
	{
		rule:   "spec.sharing rule: maxReplicas must be at least replicas",
		accept: edits{"spec.sharing.replicas": 10, "spec.sharing.maxReplicas": 10},
		reject: edits{"spec.sharing.replicas": 10, "spec.sharing.maxReplicas": 9},
	},
	{
		rule:    "spec.sharing.maxReplicas minimum",
		accept:  edits{"spec.sharing.replicas": 2, "spec.sharing.maxReplicas": 2},
		reject:  edits{"spec.sharing.replicas": 2, "spec.sharing.maxReplicas": 1},
		message: "greater than or equal to 2",
	},
	{rule: "spec.sharing.maxReplicas maximum", accept: edits{"spec.sharing.maxReplicas": 128}, reject: edits{"spec.sharing.maxReplicas": 129}, message: "less than or equal to 128"},
	{
		rule:    "spec.sharing.overrides maxItems",
		accept:  edits{"spec.sharing.overrides": many(32)},
		reject:  edits{"spec.sharing.overrides": many(33)},
		message: "must have at most 32 items",
	},
	{
		rule:    "spec.sharing.overrides unique gpuName",
		accept:  edits{"spec.sharing.overrides": overrides(edits{"gpuName": "t4"}, edits{"gpuName": "a10g"})},
		reject:  edits{"spec.sharing.overrides": overrides(edits{"gpuName": "t4"}, edits{"gpuName": "t4", "replicas": 3})},
		message: "Duplicate value",
	},
	{rule: "spec.sharing.overrides[].gpuName required", accept: override(nil), reject: override(edits{"gpuName": nil}), message: "Required value"},
	{rule: "spec.sharing.overrides[].gpuName minLength", accept: override(edits{"gpuName": "t"}), reject: override(edits{"gpuName": ""}), message: "at least 1 chars"},
	{
		rule:    "spec.sharing.overrides[].gpuName maxLength",
		accept:  override(edits{"gpuName": long(63)}),
		reject:  override(edits{"gpuName": long(64)}),
		message: "may not be more than 63",
	},
	{rule: "spec.sharing.overrides[].replicas required", accept: override(nil), reject: override(edits{"replicas": nil}), message: "Required value"},
	{rule: "spec.sharing.overrides[].replicas minimum", accept: override(edits{"replicas": 1}), reject: override(edits{"replicas": 0}), message: "greater than or equal to 1"},
	{rule: "spec.sharing.overrides[].replicas maximum", accept: override(edits{"replicas": 128}), reject: override(edits{"replicas": 129}), message: "less than or equal to 128"},
	{
		rule:    "spec.sharing.resourceName enum",
		accept:  edits{"spec.sharing.resourceName": "nvidia.com/gpu"},
		reject:  edits{"spec.sharing.resourceName": "nvidia.com/gpu-shared"},
		message: `supported values: "nvidia.com/gpu", "nvidia.com/gpu.shared"`,
	},
	{
		rule:    "spec.sharing.resourceName enum",
		accept:  edits{"spec.sharing.resourceName": "nvidia.com/gpu.shared"},
		reject:  edits{"spec.sharing.resourceName": "amd.com/gpu"},
		message: `supported values: "nvidia.com/gpu", "nvidia.com/gpu.shared"`,
	},
	{
		rule:    "spec.sharing.requestsAboveOne enum",
		accept:  edits{"spec.sharing.requestsAboveOne": "Allow"},
		reject:  edits{"spec.sharing.requestsAboveOne": "Deny"},
		message: `supported values: "Allow", "Refuse"`,
	},
	{
		rule:    "spec.sharing.requestsAboveOne enum",
		accept:  edits{"spec.sharing.requestsAboveOne": "Refuse"},
		reject:  edits{"spec.sharing.requestsAboveOne": "refuse"},
		message: `supported values: "Allow", "Refuse"`,
	},

	{rule: "spec.launch.maxPremiumPercent minimum", accept: premium(0), reject: premium(-1), message: "greater than or equal to 0"},
	{rule: "spec.launch.maxPremiumPercent maximum", accept: premium(100), reject: premium(101), message: "less than or equal to 100"},

	{
		rule:    "spec.consolidation.idleAfter maxLength",
		accept:  idleAfter(strings.Repeat("1s", 16)),
		reject:  idleAfter(strings.Repeat("1s", 16) + "s"),
		message: "may not be more than 32",
	},
	{rule: idleRule, accept: idleAfter("30s"), reject: idleAfter("30")},
	{rule: idleRule, accept: idleAfter("1h30m"), reject: idleAfter("1h 30m")},
	{rule: idleRule, accept: idleAfter("0s"), reject: idleAfter("-1s")},
	{rule: idleRule, accept: idleAfter("Never"), reject: idleAfter("never")},
	{rule: idleRule, accept: idleAfter("720h"), reject: idleAfter("720h1s")},
	{rule: idleRule, accept: idleAfter("43200m"), reject: idleAfter("43201m")},
	{rule: idleRule, accept: idleAfter("2592000s"), reject: idleAfter("2592001s")},
	{rule: idleRule, accept: idleAfter("5m"), reject: idleAfter("")},
	{rule: idleRule, accept: idleAfter("24h"), reject: idleAfter("1d")},
	{rule: idleRule, accept: idleAfter("1s"), reject: idleAfter("500ms")},
	{rule: idleRule, accept: idleAfter("1h"), reject: idleAfter("9999999999999h")}, // too long for CEL's duration

	{
		rule:    "spec.terminationGracePeriod maxLength",
		accept:  grace(strings.Repeat("1s", 16)),
		reject:  grace(strings.Repeat("1s", 16) + "s"),
		message: "may not be more than 32",
	},
	{rule: graceRule, accept: grace("30m"), reject: grace("30")},
	{rule: graceRule, accept: grace("Never"), reject: grace("never")},
	{rule: graceRule, accept: grace("720h"), reject: grace("720h1s")},
	{rule: graceRule, accept: grace("0s"), reject: grace("")},
	{
		rule:    "spec.consolidation.policy enum",
		accept:  consolidation("policy", "WhenIdle"),
		reject:  consolidation("policy", "WhenEmpty"),
		message: `supported values: "WhenCheaper", "WhenIdle"`,
	},
	{
		rule:    "spec.consolidation.policy enum",
		accept:  consolidation("policy", "WhenCheaper"),
		reject:  consolidation("policy", ""),
		message: `supported values: "WhenCheaper", "WhenIdle"`,
	},
	{
		rule:    "spec.consolidation.restartCost maxLength",
		accept:  consolidation("restartCost", "999999.999999"),
		reject:  consolidation("restartCost", "0.0000000000000001"),
		message: "may not be more than 16",
	},
	{rule: costRule, accept: consolidation("restartCost", "0"), reject: consolidation("restartCost", "-0.02"), message: "should match"},
	{rule: costRule, accept: consolidation("restartCost", "0.000001"), reject: consolidation("restartCost", "0.0000001"), message: "should match"},
	{rule: costRule, accept: consolidation("restartCost", "0.02"), reject: consolidation("restartCost", ".02"), message: "should match"},
	{rule: costRule, accept: consolidation("restartCost", "2"), reject: consolidation("restartCost", "$2"), message: "should match"},

	{
		rule:    "spec.headroom maxItems",
		accept:  edits{"spec.headroom": slices.Repeat([]any{warm(nil)}, 16)},
		reject:  edits{"spec.headroom": slices.Repeat([]any{warm(nil)}, 17)},
		message: "must have at most 16 items",
	},
	{rule: "spec.headroom[].replicas required", accept: headroom(nil), reject: headroom(edits{"replicas": nil}), message: "Required value"},
	{rule: "spec.headroom[].replicas minimum", accept: headroom(edits{"replicas": 1}), reject: headroom(edits{"replicas": 0}), message: "greater than or equal to 1"},
	{
		rule:    "spec.headroom[].replicas maximum",
		accept:  headroom(edits{"replicas": 10000}),
		reject:  headroom(edits{"replicas": 10001}),
		message: "less than or equal to 10000",
	},
	{rule: headroomRule, accept: headroom(nil), reject: headroom(edits{"schedule": "0 7 * * mon-fri"})},
	{rule: headroomRule, accept: headroom(edits{"schedule": "0 7 * * mon-fri", "duration": "10h"}), reject: headroom(edits{"duration": "10h"})},
	{rule: "spec.headroom[].schedule minLength", accept: scheduled("@daily", "1h"), reject: scheduled("", "1h"), message: "at least 1 chars"},
	{
		rule:    "spec.headroom[].schedule maxLength",
		accept:  scheduled("0 7 * * "+strings.Repeat("1", 120), "1h"),
		reject:  scheduled("0 7 * * "+strings.Repeat("1", 121), "1h"),
		message: "may not be more than 128",
	},
	{rule: "spec.headroom[].schedule pattern", accept: scheduled("@weekly", "1h"), reject: scheduled("@reboot", "1h"), message: "should match"},
	{rule: "spec.headroom[].schedule pattern", accept: scheduled("0 7 * * *", "1h"), reject: scheduled("7 o'clock", "1h"), message: "should match"},
	{
		rule:    "spec.headroom[].duration maxLength",
		accept:  scheduled("@daily", strings.Repeat("1m", 16)),
		reject:  scheduled("@daily", strings.Repeat("1m", 16)+"m"),
		message: "may not be more than 32",
	},
	{rule: headroomFor, accept: scheduled("@daily", "30m"), reject: scheduled("@daily", "30s")},
	{rule: headroomFor, accept: scheduled("@daily", "1h30m"), reject: scheduled("@daily", "1.5h")},
	{rule: headroomFor, accept: scheduled("@daily", "720h"), reject: scheduled("@daily", "720h1m")},
	{rule: headroomFor, accept: scheduled("@daily", "43200m"), reject: scheduled("@daily", "")},
	{
		rule:    "spec.consolidation.unusedAfter maxLength",
		accept:  unusedAfter(strings.Repeat("1s", 16)),
		reject:  unusedAfter(strings.Repeat("1s", 16) + "s"),
		message: "may not be more than 32",
	},
	{rule: unusedRule, accept: unusedAfter("30m"), reject: unusedAfter("30")},
	{rule: unusedRule, accept: unusedAfter("Never"), reject: unusedAfter("never")},
	{rule: unusedRule, accept: unusedAfter("720h"), reject: unusedAfter("720h1s")},
	{rule: unusedRule, accept: unusedAfter("0s"), reject: unusedAfter("-1h")},
	{rule: unusedRule, accept: unusedAfter("2h"), reject: unusedAfter("")},

	{rule: "status.conditions unique type", accept: conditions("Accepted", "Ready"), reject: conditions("Ready", "Ready"), message: "Duplicate value"},
	{rule: "status.conditions maxItems", accept: conditions(numbered("C", 16)...), reject: conditions(numbered("C", 17)...), message: "must have at most 16 items"},
	{rule: "status.observedGeneration minimum", accept: edits{"status.observedGeneration": 0}, reject: edits{"status.observedGeneration": -1}, message: "greater than or equal to 0"},
	{rule: "status.nodes minimum", accept: edits{"status.nodes": 0}, reject: edits{"status.nodes": -1}, message: "greater than or equal to 0"},
	{rule: "status.gpus minimum", accept: edits{"status.gpus": 0}, reject: edits{"status.gpus": -1}, message: "greater than or equal to 0"},
	{rule: "status.replicas minimum", accept: edits{"status.replicas": 0}, reject: edits{"status.replicas": -1}, message: "greater than or equal to 0"},
	{rule: "status.replicasInUse minimum", accept: edits{"status.replicasInUse": 0}, reject: edits{"status.replicasInUse": -1}, message: "greater than or equal to 0"},
	{rule: "status.unusedNodes minimum", accept: edits{"status.unusedNodes": 0}, reject: edits{"status.unusedNodes": -1}, message: "greater than or equal to 0"},
	{
		rule:    "status.unusedUSDPerHour maxLength",
		accept:  edits{"status.unusedUSDPerHour": digits(32)},
		reject:  edits{"status.unusedUSDPerHour": digits(33)},
		message: "may not be more than 32",
	},
	{rule: "status.unusedUSDPerHour pattern", accept: edits{"status.unusedUSDPerHour": "0.526"}, reject: edits{"status.unusedUSDPerHour": "$0.526"}, message: "should match"},
	{rule: "status.usdPerHour maxLength", accept: edits{"status.usdPerHour": digits(32)}, reject: edits{"status.usdPerHour": digits(33)}, message: "may not be more than 32"},
	{rule: "status.usdPerHour pattern", accept: edits{"status.usdPerHour": "4.208"}, reject: edits{"status.usdPerHour": "$4.208"}, message: "should match"},
	{rule: "status.usdPerHour pattern", accept: edits{"status.usdPerHour": "0"}, reject: edits{"status.usdPerHour": "1e3"}, message: "should match"},
	{
		rule:    "status.refusedOfferings maxItems",
		accept:  edits{"status.refusedOfferings": slices.Repeat([]any{offering(nil)}, 250)},
		reject:  edits{"status.refusedOfferings": slices.Repeat([]any{offering(nil)}, 251)},
		message: "must have at most 250 items",
	},
	{
		rule:    "status.nodeMismatches maxItems",
		accept:  edits{"status.nodeMismatches": slices.Repeat([]any{mismatch(nil)}, 100)},
		reject:  edits{"status.nodeMismatches": slices.Repeat([]any{mismatch(nil)}, 101)},
		message: "must have at most 100 items",
	},
	{rule: "status.nodeMismatches[].nodePool required", accept: mismatched(nil), reject: mismatched(edits{"nodePool": nil}), message: "Required value"},
	{rule: "status.nodeMismatches[].nodePool maxLength", accept: mismatched(edits{"nodePool": long(253)}), reject: mismatched(edits{"nodePool": long(254)}), message: "may not be more than 253"},
	{rule: "status.nodeMismatches[].nodeClaim required", accept: mismatched(nil), reject: mismatched(edits{"nodeClaim": nil}), message: "Required value"},
	{rule: "status.nodeMismatches[].nodeClaim maxLength", accept: mismatched(edits{"nodeClaim": long(253)}), reject: mismatched(edits{"nodeClaim": long(254)}), message: "may not be more than 253"},
	{rule: "status.nodeMismatches[].pods required", accept: mismatched(nil), reject: mismatched(edits{"pods": nil}), message: "Required value"},
	{rule: "status.nodeMismatches[].pods maxLength", accept: mismatched(edits{"pods": long(63)}), reject: mismatched(edits{"pods": long(64)}), message: "may not be more than 63"},
	{rule: "status.nodeMismatches[].taint maxLength", accept: mismatched(edits{"taint": long(400)}), reject: mismatched(edits{"taint": long(401)}), message: "may not be more than 400"},
	{rule: "status.nodeMismatches[].label maxLength", accept: mismatched(edits{"label": long(317)}), reject: mismatched(edits{"label": long(318)}), message: "may not be more than 317"},
	{rule: "status.nodeMismatches[].expected maxLength", accept: mismatched(edits{"expected": long(253)}), reject: mismatched(edits{"expected": long(254)}), message: "may not be more than 253"},
	{rule: "status.nodeMismatches[].actual maxLength", accept: mismatched(edits{"actual": long(63)}), reject: mismatched(edits{"actual": long(64)}), message: "may not be more than 63"},
	{rule: "status.nodeMismatches[].since required", accept: mismatched(nil), reject: mismatched(edits{"since": nil}), message: "Required value"},
	{rule: "status.nodeMismatches[].nodePoolGeneration minimum", accept: mismatched(edits{"nodePoolGeneration": 0}), reject: mismatched(edits{"nodePoolGeneration": -1}), message: "greater than or equal to 0"},
	{rule: "status.nodeMismatches[].classGeneration minimum", accept: mismatched(edits{"classGeneration": 0}), reject: mismatched(edits{"classGeneration": -1}), message: "greater than or equal to 0"},
	{rule: "status.nodeMismatches[].nodeClassGeneration minimum", accept: mismatched(edits{"nodeClassGeneration": 0}), reject: mismatched(edits{"nodeClassGeneration": -1}), message: "greater than or equal to 0"},
	{rule: "status.refusedOfferings[].instanceType required", accept: refused(nil), reject: refused(edits{"instanceType": nil}), message: "Required value"},
	{rule: "status.refusedOfferings[].instanceType minLength", accept: refused(edits{"instanceType": "g"}), reject: refused(edits{"instanceType": ""}), message: "at least 1 chars"},
	{
		rule:    "status.refusedOfferings[].instanceType maxLength",
		accept:  refused(edits{"instanceType": long(63)}),
		reject:  refused(edits{"instanceType": long(64)}),
		message: "may not be more than 63",
	},
	{rule: "status.refusedOfferings[].zone required", accept: refused(nil), reject: refused(edits{"zone": nil}), message: "Required value"},
	{rule: "status.refusedOfferings[].zone maxLength", accept: refused(edits{"zone": long(63)}), reject: refused(edits{"zone": long(64)}), message: "may not be more than 63"},
	{rule: "status.refusedOfferings[].capacityType required", accept: refused(nil), reject: refused(edits{"capacityType": nil}), message: "Required value"},
	{
		rule:    "status.refusedOfferings[].capacityType enum",
		accept:  refused(edits{"capacityType": "spot"}),
		reject:  refused(edits{"capacityType": "Spot"}),
		message: `supported values: "spot", "on-demand", "reserved", "*"`,
	},
	{
		rule:    "status.refusedOfferings[].capacityType enum",
		accept:  refused(edits{"capacityType": "reserved"}),
		reject:  refused(edits{"capacityType": ""}),
		message: `supported values: "spot", "on-demand", "reserved", "*"`,
	},
	{
		rule:    "status.refusedOfferings[].capacityType enum",
		accept:  refused(edits{"capacityType": "*", "zone": "*"}),
		reject:  refused(edits{"capacityType": "any"}),
		message: `supported values: "spot", "on-demand", "reserved", "*"`,
	},
	{
		rule:    "status.refusedOfferings[].reason maxLength",
		accept:  refused(edits{"reason": long(63)}),
		reject:  refused(edits{"reason": long(64)}),
		message: "may not be more than 63",
	},
	{
		rule:    "status.refusedOfferings[].reason pattern",
		accept:  refused(edits{"reason": "VCPULimitExceeded"}),
		reject:  refused(edits{"reason": "no capacity"}),
		message: "should match",
	},
	{
		rule:    "status.refusedOfferings[].nodeClassGeneration minimum",
		accept:  refused(edits{"nodeClassGeneration": 3}),
		reject:  refused(edits{"nodeClassGeneration": -1}),
		message: "greater than or equal to 0",
	},
	{rule: "status.refusedOfferings[].failures required", accept: refused(nil), reject: refused(edits{"failures": nil}), message: "Required value"},
	{rule: "status.refusedOfferings[].failures minimum", accept: refused(edits{"failures": 1}), reject: refused(edits{"failures": 0}), message: "greater than or equal to 1"},
	{rule: "status.refusedOfferings[].notBefore required", accept: refused(nil), reject: refused(edits{"notBefore": nil}), message: "Required value"},
	{
		rule:    "status.refusedOfferings[].message maxLength",
		accept:  refused(edits{"message": long(1024)}),
		reject:  refused(edits{"message": long(1025)}),
		message: "may not be more than 1024",
	},
	{rule: "status.waste.usd required", accept: waste(nil), reject: waste(edits{"usd": nil}), message: "Required value"},
	{rule: "status.waste.usd maxLength", accept: waste(edits{"usd": strings.Repeat("1", 32)}), reject: waste(edits{"usd": strings.Repeat("1", 33)}), message: "may not be more than 32"},
	{rule: "status.waste.usd pattern", accept: waste(edits{"usd": "0.05"}), reject: waste(edits{"usd": "-1"}), message: "should match"},
	{rule: "status.waste.usdPerHour required", accept: waste(nil), reject: waste(edits{"usdPerHour": nil}), message: "Required value"},
	{rule: "status.waste.usdPerHour maxLength", accept: waste(edits{"usdPerHour": strings.Repeat("1", 32)}), reject: waste(edits{"usdPerHour": strings.Repeat("1", 33)}), message: "may not be more than 32"},
	{rule: "status.waste.usdPerHour pattern", accept: waste(edits{"usdPerHour": "0.05"}), reject: waste(edits{"usdPerHour": "-1"}), message: "should match"},
	{rule: "status.waste.asOf required", accept: waste(nil), reject: waste(edits{"asOf": nil}), message: "Required value"},
	{
		rule:    "status.waste.steps maxItems",
		accept:  waste(edits{"steps": slices.Repeat([]any{wasted(nil)}, 20)}),
		reject:  waste(edits{"steps": slices.Repeat([]any{wasted(nil)}, 21)}),
		message: "must have at most 20 items",
	},
	{rule: "status.waste.steps[].nodeClaims required", accept: wasteStep(nil), reject: wasteStep(edits{"nodeClaims": nil}), message: "Required value"},
	{rule: "status.waste.steps[].nodeClaims minItems", accept: wasteStep(nil), reject: wasteStep(edits{"nodeClaims": []any{}}), message: "at least 1 items"},
	{
		rule:    "status.waste.steps[].nodeClaims maxItems",
		accept:  wasteStep(edits{"nodeClaims": slices.Repeat([]any{"a"}, 100)}),
		reject:  wasteStep(edits{"nodeClaims": slices.Repeat([]any{"a"}, 101)}),
		message: "must have at most 100 items",
	},
	{
		rule:    "status.waste.steps[].nodeClaims[] maxLength",
		accept:  wasteStep(edits{"nodeClaims": []any{long(253)}}),
		reject:  wasteStep(edits{"nodeClaims": []any{long(254)}}),
		message: "may not be more than 253",
	},
	{rule: "status.waste.steps[].pods required", accept: wasteStep(nil), reject: wasteStep(edits{"pods": nil}), message: "Required value"},
	{rule: "status.waste.steps[].pods minimum", accept: wasteStep(edits{"pods": 0}), reject: wasteStep(edits{"pods": -1}), message: "greater than or equal to 0"},
	{rule: "status.waste.steps[].restartUSD required", accept: wasteStep(nil), reject: wasteStep(edits{"restartUSD": nil}), message: "Required value"},
	{rule: "status.waste.steps[].restartUSD maxLength", accept: wasteStep(edits{"restartUSD": strings.Repeat("1", 32)}), reject: wasteStep(edits{"restartUSD": strings.Repeat("1", 33)}), message: "may not be more than 32"},
	{rule: "status.waste.steps[].restartUSD pattern", accept: wasteStep(edits{"restartUSD": "0.05"}), reject: wasteStep(edits{"restartUSD": "-1"}), message: "should match"},
	{rule: "status.waste.steps[].usdPerHour required", accept: wasteStep(nil), reject: wasteStep(edits{"usdPerHour": nil}), message: "Required value"},
	{rule: "status.waste.steps[].usdPerHour maxLength", accept: wasteStep(edits{"usdPerHour": strings.Repeat("1", 32)}), reject: wasteStep(edits{"usdPerHour": strings.Repeat("1", 33)}), message: "may not be more than 32"},
	{rule: "status.waste.steps[].usdPerHour pattern", accept: wasteStep(edits{"usdPerHour": "0.05"}), reject: wasteStep(edits{"usdPerHour": "-1"}), message: "should match"},
}

const unusedRule = "spec.consolidation.unusedAfter rule: unusedAfter is a time such as 30m or 2h, at most 720h, or Never to report nothing"

const costRule = "spec.consolidation.restartCost pattern"

const graceRule = "spec.terminationGracePeriod rule: terminationGracePeriod is a time such as 30m or 1h30m, at most 720h, or Never to wait for pods that cannot be evicted"

const idleRule = "spec.consolidation.idleAfter rule: idleAfter is a time such as 30s, 5m or 1h30m, at most 720h, or Never to keep idle machines"

const (
	headroomRule = "spec.headroom[] rule: a headroom with a schedule needs a duration, and the other way round"
	headroomFor  = "spec.headroom[].duration rule: duration is a time such as 30m or 10h, at most 720h"
)

func TestRules(t *testing.T) {
	t.Parallel()
	cluster.Require(t)
	classes := client(t)
	stored, err := classes.Create(t.Context(), object(t, "rules", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteClass(t, classes, "rules") })

	// send is a dry run: the API server validates the object and stores nothing.
	send := func(t *testing.T, name string, change edits) error {
		t.Helper()
		o := object(t, name, change)
		if _, ok := o.Object["status"]; ok {
			o.SetName(stored.GetName())
			o.SetResourceVersion(stored.GetResourceVersion())
			_, err := classes.UpdateStatus(t.Context(), o, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		_, err := classes.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for i, pair := range pairs {
		t.Run(pair.rule, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("rule-%d", i)
			if err := send(t, name, pair.accept); err != nil {
				t.Errorf("accepting %v: %v", pair.accept, err)
			}
			err := send(t, name, pair.reject)
			if !apierrors.IsInvalid(err) {
				t.Fatalf("rejecting %v: got error %v, want Invalid", pair.reject, err)
			}
			field, message := expectedRejection(pair.rule, pair.message)
			if !strings.Contains(err.Error(), message) {
				t.Errorf("rejecting %v:\n got %v\nwant %s", pair.reject, err, message)
			}
			if !slices.ContainsFunc(causes(err), func(c metav1.StatusCause) bool { return withoutIndex(c.Field) == field }) {
				t.Errorf("rejecting %v: %v does not name the field %s", pair.reject, err, field)
			}
		})
	}
}

// expectedRejection returns the field and the message of a rejection by a rule.
func expectedRejection(rule, message string) (string, string) {
	if path, text, ok := strings.Cut(rule, " rule: "); ok {
		return path, text
	}
	field, _, _ := strings.Cut(rule, " ")
	if strings.Contains(rule, " unique ") {
		return field + "[]", message
	}
	return field, message
}

func causes(err error) []metav1.StatusCause {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

var index = regexp.MustCompile(`\[[^\]]*\]`)

// withoutIndex turns overrides[3] into overrides[].
func withoutIndex(field string) string { return index.ReplaceAllString(field, "[]") }

func client(t *testing.T) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return c.Resource(v1alpha1.GroupVersion.WithResource("gpunodeclasses"))
}

func deleteClass(t *testing.T, classes dynamic.ResourceInterface, name string) {
	t.Helper()
	// The test's context is canceled before its cleanups run.
	if err := classes.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// object returns a valid GPUNodeClass with changes.
func object(t *testing.T, name string, change edits) *unstructured.Unstructured {
	t.Helper()
	o := map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(),
		"kind":       v1alpha1.Kind,
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{
			"nodeClassRef": map[string]any{"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
			"sharing":      map[string]any{"strategy": "TimeSlicing", "replicas": int64(10)},
		},
	}
	// Sorted, so that spec.sharing comes before spec.sharing.replicas.
	for _, path := range slices.Sorted(maps.Keys(change)) {
		fields := strings.Split(path, ".")
		if change[path] == nil {
			unstructured.RemoveNestedField(o, fields...)
			continue
		}
		if err := unstructured.SetNestedField(o, plain(change[path]), fields...); err != nil {
			t.Fatal(err)
		}
	}
	return &unstructured.Unstructured{Object: o}
}

// plain converts int to int64, the only integer type of unstructured objects.
func plain(v any) any {
	switch v := v.(type) {
	case int:
		return int64(v)
	case []any:
		out := make([]any, 0, len(v))
		for _, e := range v {
			out = append(out, plain(e))
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = plain(e)
		}
		return out
	default:
		return v
	}
}

func long(n int) string { return strings.Repeat("x", n) }

func digits(n int) string { return strings.Repeat("1", n) }

func with(base map[string]any, change edits) map[string]any {
	for k, v := range change {
		if v == nil {
			delete(base, k)
			continue
		}
		base[k] = v
	}
	return base
}

// withMPS returns changes that make the strategy MPS.
func withMPS(more edits) edits {
	e := edits{"spec.sharing.strategy": "MPS", "spec.sharing.mps": map[string]any{}}
	maps.Copy(e, more)
	return e
}

// withMIG returns changes that make the strategy MIG, with one layout.
func withMIG(more edits) edits {
	e := edits{"spec.sharing.strategy": "MIG", "spec.sharing.mig": map[string]any{"layouts": layouts(nil)}}
	maps.Copy(e, more)
	return e
}

// withSlots returns changes that make the strategy MemorySlots.
func withSlots(more edits) edits {
	e := edits{"spec.sharing.strategy": "MemorySlots", "spec.sharing.replicas": nil, "spec.sharing.memory": map[string]any{"sizes": []any{"2Gi", "4Gi"}}}
	maps.Copy(e, more)
	return e
}

// withLayout returns changes that make the strategy MIG, with a changed layout.
func withLayout(change edits) edits {
	return withMIG(edits{"spec.sharing.mig": map[string]any{"layouts": layouts(change)}})
}

func layouts(changes ...edits) []any {
	out := make([]any, 0, len(changes))
	for _, change := range changes {
		out = append(out, with(map[string]any{"gpuName": "a100", "profile": "1g.5gb"}, change))
	}
	return out
}

// several returns instances of profiles.
func several(changes ...edits) []any {
	out := make([]any, 0, len(changes))
	for _, change := range changes {
		out = append(out, with(map[string]any{"profile": "1g.5gb", "count": 3}, change))
	}
	return out
}

// withInstances returns changes that make the strategy MIG, with instances of several profiles on each GPU.
func withInstances(changes ...edits) edits {
	return withLayout(edits{"profile": nil, "instances": several(changes...)})
}

// withGroups returns changes that make the strategy MIG, with groups of GPUs.
func withGroups(changes ...edits) edits {
	out := make([]any, 0, len(changes))
	for _, change := range changes {
		out = append(out, with(map[string]any{"gpus": 4, "instances": several(nil)}, change))
	}
	return withLayout(edits{"profile": nil, "groups": out})
}

// withGroupOf returns changes that make the strategy MIG, with a group of instances of several profiles.
func withGroupOf(changes ...edits) edits { return withGroups(edits{"instances": several(changes...)}) }

// profilesUpTo returns changes to n different profiles.
func profilesUpTo(n int) []edits {
	var all []edits
	for i := range n {
		all = append(all, edits{"profile": fmt.Sprintf("1g.%dgb", i+1)})
	}
	return all
}

func slotSizes(sizes ...any) edits {
	return withSlots(edits{"spec.sharing.memory": map[string]any{"sizes": append([]any{}, sizes...)}})
}

func withReserve(reserve string) edits {
	return withSlots(edits{"spec.sharing.memory.reserve": reserve})
}

func whole(change edits) edits {
	return with(map[string]any{"spec.sharing": map[string]any{"strategy": "None"}}, change)
}

func override(change edits) edits { return edits{"spec.sharing.overrides": overrides(change)} }

func overrides(changes ...edits) []any {
	out := make([]any, 0, len(changes))
	for _, change := range changes {
		out = append(out, with(map[string]any{"gpuName": "t4", "replicas": 5}, change))
	}
	return out
}

func numbered(prefix string, n int) []string {
	out := make([]string, 0, n)
	for i := range n {
		out = append(out, fmt.Sprint(prefix, i))
	}
	return out
}

func many(n int) []any {
	changes := make([]edits, 0, n)
	for _, name := range numbered("gpu-", n) {
		changes = append(changes, edits{"gpuName": name})
	}
	return overrides(changes...)
}

func unusedAfter(value string) edits {
	return edits{"spec.consolidation": map[string]any{"unusedAfter": value}}
}

func grace(value string) edits { return edits{"spec.terminationGracePeriod": value} }

func idleAfter(value string) edits { return consolidation("idleAfter", value) }

func consolidation(field, value string) edits {
	return edits{"spec.consolidation": map[string]any{field: value}}
}

func warm(change edits) map[string]any { return with(map[string]any{"replicas": 10}, change) }

func headroom(change edits) edits { return edits{"spec.headroom": []any{warm(change)}} }

func scheduled(schedule, duration string) edits {
	return headroom(edits{"schedule": schedule, "duration": duration})
}

func conditions(types ...string) edits {
	out := make([]any, 0, len(types))
	for _, name := range types {
		out = append(out, map[string]any{
			"type": name, "status": "True", "reason": "Because", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z",
		})
	}
	return edits{"status.conditions": out}
}

func offering(change edits) map[string]any {
	return with(map[string]any{
		"instanceType": "g4dn.xlarge", "zone": "eu-west-1a", "capacityType": "on-demand", "failures": 2, "notBefore": "2026-01-02T03:04:05Z",
	}, change)
}

// mismatch returns an entry of status.nodeMismatches with a change.
func mismatch(change edits) map[string]any {
	return with(map[string]any{
		"nodePool": "gpu", "nodeClaim": "gpu-1", "pods": "1f0c9a2b7e", "label": "nvidia.com/gpu.product", "expected": "NVIDIA-A10G", "actual": "Tesla-T4", "since": "2026-01-02T03:04:05Z",
	}, change)
}

func mismatched(change edits) edits { return edits{"status.nodeMismatches": []any{mismatch(change)}} }

// wasted returns a step of status.waste with a change.
func wasted(change edits) map[string]any {
	return with(map[string]any{"nodeClaims": []any{"a"}, "pods": 5, "restartUSD": "0.250", "usdPerHour": "0.226"}, change)
}

func waste(change edits) edits {
	return edits{"status.waste": with(map[string]any{"usd": "0.100", "usdPerHour": "0.226", "asOf": "2026-03-01T12:00:00Z", "steps": []any{wasted(nil)}}, change)}
}

func wasteStep(change edits) edits { return waste(edits{"steps": []any{wasted(change)}}) }

func refused(change edits) edits { return edits{"status.refusedOfferings": []any{offering(change)}} }

func premium(percent int) edits {
	return edits{"spec.launch": map[string]any{"maxPremiumPercent": percent}}
}
