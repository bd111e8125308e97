package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/limited"
	"karve.sh/karve/pkg/nodecontract"
)

// cdiVersion is the oldest version of the Container Device Interface that has the fields of a spec with annotations.
const cdiVersion = "0.6.0"

// cdiKind is the kind of the CDI devices. There is one for each request of a claim, and possibly one for the whole claim.
const cdiKind = nodecontract.DRADriver + "/claim"

// claimAnnotation holds the claim in its CDI spec, which is the only record of it.
const claimAnnotation = nodecontract.DRADriver + "/claim"

// maxSpec is the largest size of a spec, in bytes.
const maxSpec = 1 << 20

// spec is a CDI spec.
type spec struct {
	Version     string            `json:"cdiVersion"`
	Kind        string            `json:"kind"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Devices     []specDevice      `json:"devices"`
}

type specDevice struct {
	Name  string `json:"name"`
	Edits edits  `json:"containerEdits"`
}

// edits are the container edits for GPUs.
type edits struct {
	Env         []string     `json:"env,omitempty"`
	DeviceNodes []deviceNode `json:"deviceNodes,omitempty"`
	Mounts      []mount      `json:"mounts,omitempty"`
}

type deviceNode struct {
	Path        string `json:"path"`
	HostPath    string `json:"hostPath,omitempty"`
	Permissions string `json:"permissions,omitempty"`
}

type mount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options,omitempty"`
}

// visibleDevices is the variable that makes NVIDIA's container runtime add GPUs. Many images set it to all GPUs.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// editsOf returns the edits that correspond to what the kubelet does with the response of a device plugin. If CDI adds the GPUs, the edits tell the
// runtime to add none.
func editsOf(r *pluginapi.ContainerAllocateResponse) edits {
	var e edits
	if _, set := r.GetEnvs()[visibleDevices]; !set {
		e.Env = append(e.Env, visibleDevices+"=void")
	}
	for _, name := range slices.Sorted(maps.Keys(r.GetEnvs())) {
		e.Env = append(e.Env, name+"="+r.GetEnvs()[name])
	}
	for _, d := range r.GetDevices() {
		e.DeviceNodes = append(e.DeviceNodes, deviceNode{Path: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	for _, m := range r.GetMounts() {
		e.Mounts = append(e.Mounts, mount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), Options: []string{"rbind", "rprivate", "ro"}})
	}
	return e
}

// requestsOf returns the names of the requests of a claim, in order.
func requestsOf(c Claim) []string {
	var names []string
	for _, d := range c.Devices {
		if !slices.Contains(names, d.Request) {
			names = append(names, d.Request)
		}
	}
	return names
}

// cdiName returns the name of the i-th CDI device of a claim.
func cdiName(uid string, i int) string { return uid + "-" + strconv.Itoa(i) }

const specPrefix, specSuffix = nodecontract.DRADriver + "-claim_", ".json"

// specFile returns the name of the file with the CDI spec of a claim.
func specFile(uid string) string { return specPrefix + uid + specSuffix }

// writeSpec writes the CDI spec of a claim, with the edits of each of its CDI devices.
func writeSpec(dir string, c Claim, all []edits) error {
	record, err := json.Marshal(c)
	if err != nil {
		return err
	}
	s := spec{Version: cdiVersion, Kind: cdiKind, Annotations: map[string]string{claimAnnotation: string(record)}}
	for i, e := range all {
		s.Devices = append(s.Devices, specDevice{Name: cdiName(c.UID, i), Edits: e})
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, specFile(c.UID))
	if before, err := os.ReadFile(path); err == nil && string(before) == string(data) {
		return nil
	}
	return writeFile(dir, specFile(c.UID), data)
}

// removeSpec removes the CDI spec of a claim. It returns no error if there is none.
func removeSpec(dir, uid string) error {
	if err := os.Remove(filepath.Join(dir, specFile(uid))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ClaimsOf returns the claims of the CDI specs in a directory by UID, and an error for those that cannot be read.
func ClaimsOf(dir string) (claims map[string]Claim, problem error) {
	claims = map[string]Claim{}
	paths, _ := filepath.Glob(filepath.Join(dir, specPrefix+"*"+specSuffix)) // The pattern is valid.
	var problems []error
	for _, path := range paths {
		var s spec
		var c Claim
		data, err := limited.ReadFile(path, maxSpec)
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err == nil {
			err = json.Unmarshal([]byte(s.Annotations[claimAnnotation]), &c)
		}
		uid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), specPrefix), specSuffix)
		if err == nil && (c.UID != uid || !validUID.MatchString(uid)) {
			err = fmt.Errorf("it is of the claim %.64q", c.UID)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", path, err))
			continue
		}
		claims[uid] = c
	}
	return claims, errors.Join(problems...)
}

// Recorded returns a function that looks up, in the CDI specs of a directory, the replicas that a share of a claim holds. A spec that cannot be read is
// left out.
func Recorded(specs string) func(driver, namespace, name, device, shareID string) []string {
	claims, _ := ClaimsOf(specs) // The agent reports the error.
	return func(driver, namespace, name, device, shareID string) []string {
		if driver != nodecontract.DRADriver {
			return nil
		}
		return idsIn(claims, namespace, name, device, shareID, func(string) bool { return true })
	}
}
