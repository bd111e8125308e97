package sharing_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/sharing"
)

// The test vectors of NVIDIA's device plugin v0.20.0, api/config/v1/{replicas,flags,imex}_test.go. They decode JSON fragments into single types. Here each
// fragment is part of a whole configuration, since JSON is YAML. docs/node.md lists the differences that users notice.

// read reads a configuration that contains the fragment. Invalid YAML is an error of the same kind.
func read(format, piece string) (sharing.Config, error) {
	c, _, err := sharing.Read(fmt.Appendf(nil, format, piece), false)
	return c, err
}

const (
	ofDevices  = `{"sharing": {"timeSlicing": {"resources": [{"name": "valid", "replicas": 2, "devices": %s}]}}}`
	ofResource = `{"sharing": {"timeSlicing": {"resources": [%s]}}}`
	ofSharing  = `{"sharing": {"timeSlicing": %s}}`
	ofFlags    = `{"flags": %s}`
	ofIMEX     = `{"imex": %s}`
)

func TestDevicesParseLikeNVIDIA(t *testing.T) {
	t.Parallel()
	const gpu, mig = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "MIG-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
	for piece, want := range map[string]*sharing.Devices{
		``: nil, `"not-all"`: nil, `-2`: nil, `2.5`: nil, `[-1]`: nil, `["-1"]`: nil, `["invalid-UUID"]`: nil, `["GPU-UUID"]`: nil, `["MIG-UUID"]`: nil,
		`["MIG-` + gpu + `"]`: nil, `null`: nil, `[]`: nil, `{}`: nil,
		`"all"`:                       {},
		`2.0`:                         {Count: 2}, // An error in NVIDIA's. In a file, which is YAML, both read 2.
		`2`:                           {Count: 2},
		`[0]`:                         {List: []string{"0"}},
		`["0"]`:                       {List: []string{"0"}},
		`["0:0"]`:                     {List: []string{"0:0"}},
		`["` + gpu + `"]`:             {List: []string{gpu}},
		`["` + mig + `"]`:             {List: []string{mig}},
		`["MIG-` + gpu + `/0/0"]`:     {List: []string{"MIG-" + gpu + "/0/0"}},
		`[0, "0:0", "` + gpu + `"]`:   {List: []string{"0", "0:0", gpu}},
		`["0", "0:0", "` + gpu + `"]`: {List: []string{"0", "0:0", gpu}},
		`["MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2"]`:          {List: []string{"MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2"}},
		`["MIG-GPU-662077db-fa3f-0d8f-9502-21ab0ef058a2/10/0"]`: {List: []string{"MIG-GPU-662077db-fa3f-0d8f-9502-21ab0ef058a2/10/0"}},
	} {
		c, err := read(ofDevices, piece)
		if (err != nil) != (want == nil) {
			t.Errorf("%s: %v", piece, err)
		}
		if want == nil || err != nil {
			continue
		}
		if diff := cmp.Diff(*want, c.Sharing.TimeSlicing.Resources[0].Devices); diff != "" {
			t.Errorf("%s: %s", piece, diff)
		}
	}
}

func TestResourcesParseLikeNVIDIA(t *testing.T) {
	t.Parallel()
	valid := func(rename string) *sharing.Entry {
		return &sharing.Entry{Name: "nvidia.com/valid", Rename: rename, Replicas: 2}
	}
	for piece, want := range map[string]*sharing.Entry{
		`{}`: nil, `{"name": "valid",}`: nil, `{"name": "valid", "devices": "all",}`: nil, `{"name": "valid", "devices": "all", "rename": "valid-shared",}`: nil,
		`{"name": "valid", "replicas": -1,}`: nil, `{"name": "valid", "replicas": 0,}`: nil, `{"name": "$invalid$", "replicas": 2, "rename": "valid-shared"}`: nil,
		`{"name": "valid", "replicas": 2, "rename": "$invalid$"}`:                      nil,
		`{"name": "valid", "devices": "all", "replicas": 2}`:                           valid(""),
		`{"name": "valid", "devices": "all", "replicas": 2, "rename": "valid-shared"}`: valid("nvidia.com/valid-shared"),
		`{"name": "valid", "replicas": 2}`:                                             valid(""),
		`{"name": "valid", "replicas": 2, "rename": "valid-shared"}`:                   valid("nvidia.com/valid-shared"),
	} {
		c, err := read(ofResource, piece)
		if (err != nil) != (want == nil) {
			t.Errorf("%s: %v", piece, err)
		}
		if want == nil || err != nil {
			continue
		}
		if diff := cmp.Diff([]sharing.Entry{*want}, c.Sharing.TimeSlicing.Resources); diff != "" {
			t.Errorf("%s: %s", piece, diff)
		}
	}
	for piece, want := range map[string][]string{
		``: nil, `{}`: nil, `{"resources": []}`: nil, `{"resources": [{"name": "$invalid$", "replicas": 2}]}`: nil,
		`{"resources": [{"name": "valid", "replicas": 2}]}`:                                     {"nvidia.com/valid"},
		`{"resources": [{"name": "valid1", "replicas": 2}, {"name": "valid2", "replicas": 2}]}`: {"nvidia.com/valid1", "nvidia.com/valid2"},
	} {
		c, err := read(ofSharing, piece)
		if (err != nil) != (want == nil) {
			t.Errorf("%s: %v", piece, err)
		}
		if want == nil || err != nil {
			continue
		}
		var got []string
		for _, e := range c.Sharing.TimeSlicing.Resources {
			got = append(got, e.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", piece, got)
		}
	}
}

// TestMPSAllowsRequestsGreaterThanOneIfConfigured tests behavior that is new in v0.20.0. Earlier versions never allow it.
func TestMPSAllowsRequestsGreaterThanOneIfConfigured(t *testing.T) {
	t.Parallel()
	for piece, want := range map[string]bool{
		`{"resources": [{"name": "gpu", "replicas": 2}]}`:                                      true,
		`{"failRequestsGreaterThanOne": true, "resources": [{"name": "gpu", "replicas": 2}]}`:  true,
		`{"failRequestsGreaterThanOne": false, "resources": [{"name": "gpu", "replicas": 2}]}`: false,
	} {
		c, err := read(`{"sharing": {"mps": %s}}`, piece)
		if err != nil || *c.Sharing.MPS.FailRequestsGreaterThanOne != want {
			t.Errorf("%s: %v, %v", piece, c.Sharing.MPS, err)
		}
	}
}

func TestFlagsParseLikeNVIDIA(t *testing.T) {
	t.Parallel()
	lists := func(lists ...string) map[string][]string { return map[string][]string{sharing.KeyDeviceLists: lists} }
	for piece, want := range map[string]map[string][]string{
		``:                                       {}, // An error in NVIDIA's, because an empty text is not JSON. In a file, both read no flags.
		`{}`:                                     {},
		`{"gfd": {}}`:                            {},
		`{"gfd": {"noTimestamp": true}}`:         {"flags.gfd.noTimestamp": {"true"}},
		`{"gfd": {"sleepInterval": 0}}`:          {}, // It has no effect here.
		`{"gfd": {"sleepInterval": "5s"}}`:       {},
		`{"gfd": {"sleepInterval": "infinite"}}`: {},
		`{"plugin": {"deviceListStrategy": "envvar"}}`:                      lists("envvar"),
		`{"plugin": {"deviceListStrategy": ["envvar", "cdi-annotations"]}}`: lists("envvar", "cdi-annotations"),
	} {
		c, err := read(ofFlags, piece)
		if err != nil {
			t.Errorf("%s: %v", piece, err)
			continue
		}
		if diff := cmp.Diff(want, c.Given); diff != "" {
			t.Errorf("%s: %s", piece, diff)
		}
	}
}

func TestIMEXParsesLikeNVIDIA(t *testing.T) {
	t.Parallel()
	for piece, want := range map[string][]int{
		`{}`: nil, `{"channelIDs": null}`: nil, `{"channelIDs": []}`: nil, `{"channelIDs": [0]}`: {0},
	} {
		c, err := read(ofIMEX, piece)
		s, invalid := c.Settings()
		if err := errors.Join(err, invalid); err != nil || !slices.Equal(s.IMEXChannels, want) {
			t.Errorf("%s: %v, %v", piece, s.IMEXChannels, err)
		}
	}
	c, err := read(ofIMEX, `{"channelIDs": [2]}`)
	if err != nil || !slices.Equal(c.Given["imex.channelIDs"], []string{"2"}) {
		t.Errorf("%v, %v", c.Given, err)
	}
	if _, err := c.Settings(); err == nil || !strings.Contains(err.Error(), "can be [] or [0]") {
		t.Error(err)
	}
}
