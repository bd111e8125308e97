// Package ui tests the web page of kubectl karve ui in a real browser, without and with a cluster.
package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// patience is how long the browser and the page may take for anything. The computer may do much else.
const patience = 30 * time.Second

// chromium returns the path of a browser. Without one it skips the test, or fails it with KARVE_REQUIRE_CHROMIUM=1. It installs nothing.
func chromium(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const missing = "there is no Chromium: install Debian's package chromium"
	if os.Getenv("KARVE_REQUIRE_CHROMIUM") == "1" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// browse starts a browser without a profile, which the test ends.
func browse(t *testing.T) context.Context {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(chromium(t)), chromedp.UserDataDir(t.TempDir()), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.WindowSize(1440, 900), chromedp.WSURLReadTimeout(patience),
	}
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "hide-scrollbars", "enable-precise-memory-info"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	allocated, free := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(free)
	browser, end := chromedp.NewContext(allocated)
	t.Cleanup(end)
	if err := chromedp.Run(browser); err != nil {
		t.Fatalf("starting Chromium: %v", err)
	}
	return browser
}

// tab is a tab of the browser.
type tab struct {
	*testing.T
	ctx context.Context
	// patience is how long the page may take for what until waits for.
	patience time.Duration

	mu       sync.Mutex
	requests []string
	// wrong is what the browser complained about: exceptions, and what the Content-Security-Policy refused.
	wrong []string
	// interrupted reports whether Chromium has ended requests because an interface of the machine came or went, such as one of a pod of another test. It does so
	// for requests to loopback too.
	interrupted bool
}

func open(t *testing.T, browser context.Context, url string) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser)
	t.Cleanup(end)
	p := &tab{T: t, ctx: ctx, patience: patience}
	chromedp.ListenTarget(ctx, func(event any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			p.requests = append(p.requests, e.Request.URL)
		case *runtime.EventExceptionThrown:
			p.wrong = append(p.wrong, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if strings.HasSuffix(e.Entry.Text, "net::ERR_NETWORK_CHANGED") {
				p.interrupted = true
				return
			}
			p.wrong = append(p.wrong, e.Entry.Text)
		}
	})
	// The first actions open the tab, which lives as long as their context.
	if err := chromedp.Run(ctx, network.Enable(), log.Enable()); err != nil {
		t.Fatal(err)
	}
	p.load(chromedp.Navigate(url))
	return p
}

// load runs actions of which the last loads a page. It loads the page again if that was interrupted.
func (p *tab) load(actions ...chromedp.Action) {
	p.Helper()
	for range 10 {
		p.mu.Lock()
		before := len(p.wrong)
		p.interrupted = false
		p.mu.Unlock()
		p.run(actions...)
		p.mu.Lock()
		again := p.interrupted
		if again {
			p.wrong = p.wrong[:before]
		}
		p.mu.Unlock()
		if !again {
			return
		}
		actions = []chromedp.Action{chromedp.Reload()}
	}
	p.Fatal("the network changes all the time")
}

func (p *tab) run(actions ...chromedp.Action) {
	p.Helper()
	ctx, stop := context.WithTimeout(p.ctx, patience)
	defer stop()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.Fatal(err)
	}
}

// value returns what a JavaScript expression is worth.
func value[V any](p *tab, expression string) V {
	p.Helper()
	var v V
	p.run(chromedp.Evaluate(expression, &v))
	return v
}

// until waits for an expression to be true.
func (p *tab) until(expression string) {
	p.Helper()
	for deadline := time.Now().Add(p.patience); ; time.Sleep(50 * time.Millisecond) {
		if value[bool](p, "Boolean("+expression+")") {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("after %s it is still not true that %s. The page shows:\n%s", p.patience, expression, value[string](p, "document.body.innerText.slice(0, 3000)"))
		}
	}
}

// untilText waits until the element with an ID has a text.
func (p *tab) untilText(id, text string) {
	p.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		p.Fatal(err)
	}
	p.until(fmt.Sprintf("document.getElementById(%q).textContent === %s", id, quoted))
}

func (p *tab) text(id string) string {
	p.Helper()
	return value[string](p, fmt.Sprintf("document.getElementById(%q).textContent", id))
}

func (p *tab) press(keys ...string) {
	p.Helper()
	for _, key := range keys {
		p.run(chromedp.KeyEvent(key))
	}
}

// focused returns the ID of the element that has the focus.
func (p *tab) focused() string {
	p.Helper()
	return value[string](p, "document.activeElement.id")
}

// clean checks that the tab asked nothing of anyone but the server, with no token in any address, and that the browser had nothing to complain about.
func (p *tab) clean(server, token string) {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.requests) == 0 {
		p.Error("no request was seen")
	}
	for _, url := range p.requests {
		if strings.HasPrefix(url, "data:") {
			continue // A picture of the browser itself, as in a field for a date.
		}
		if !strings.HasPrefix(url, server+"/") || strings.Contains(url, token) {
			p.Errorf("the page requested %s", url)
		}
	}
	for _, what := range p.wrong {
		p.Errorf("the browser says: %s", what)
	}
}

// picture writes what the tab shows to a file in the folder in KARVE_SCREENSHOTS, if it is set.
func picture(p *tab, name string) {
	p.Helper()
	folder := os.Getenv("KARVE_SCREENSHOTS")
	if folder == "" {
		return
	}
	var png []byte
	p.run(chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(folder, name+".png"), png, 0o600); err != nil {
		p.Fatal(err)
	}
}

// tabKey is the key that moves the focus.
const tabKey = kb.Tab
