package node

import (
	"io"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/sharing"
)

// FuzzOptions checks that any flags, environment and configuration yield either valid settings or an error with a message.
func FuzzOptions(f *testing.F) {
	for _, args := range []string{
		"", "--device-list-strategy=envvar --device-list-strategy=cdi-cri,volume-mounts", "--mps-root=/x --nvidia-ctk-path /y --cdi-feature-flags=a --imex-channel-ids=0 --imex-required",
		"--imex-channel-ids=1,2", "--strict --log-level loud", "--nvidia-driver-root / --dev-root=/dev --pass-device-specs=maybe", "x", "--", "-h", "--cdi-spec-dirs=,",
	} {
		f.Add(args, "DEVICE_LIST_STRATEGY", "envvar,smoke", "version: v1")
		f.Add(args, "MIG_STRATEGY", "mixed", "flags: {plugin: {deviceListStrategy: [cdi-annotations]}, gfd: {noTimestamp: true}}\nimex: {channelIDs: [0]}")
	}
	f.Fuzz(func(t *testing.T, args, variable, value, config string) {
		o, err := Parse(strings.Fields(args), func(name string) (string, bool) { return value, name == variable && value != "" }, io.Discard)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("the error has no message")
			}
			return
		}
		if _, err := o.override(sharing.Config{}); err != nil {
			t.Fatalf("parse let %q pass: %v", args, err)
		}
		_ = sharing.WithoutEffect(o.flag, o.env)
		c, _, err := sharing.Read([]byte(config), o.strict)
		if err != nil {
			return
		}
		c, err = o.override(c)
		if err != nil {
			return
		}
		s, err := c.Settings()
		if err != nil || len(s.DeviceLists) == 0 || s.DevRoot == "" && s.DriverRoot != "" {
			t.Fatalf("%q over %q: %+v, %v", args, config, s, err)
		}
		if again, err := o.override(c); err != nil || len(again.Given["imex.channelIDs"]) != len(c.Given["imex.channelIDs"]) {
			t.Fatalf("%q twice over %q: %+v, %v", args, config, again, err)
		}
		_, _ = c.Resources(gputest.T4s(2))
	})
}
