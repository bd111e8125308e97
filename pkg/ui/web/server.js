// What the page asks of its server. All requests are GETs below karve/, relative to the page, with the token in a header.

export class Refused extends Error {}

export class Server {
  constructor(token) {
    this.token = token;
    this.heard = false;
  }

  async get(path, signal) {
    const headers = this.token ? { Authorization: "Bearer " + this.token } : {};
    const response = await fetch("karve/" + path, { headers, signal, cache: "no-store" });
    // Where the API server decides, a token that it cannot read is an internal error.
    if (response.status === 401 || response.status === 403 || response.status === 500 && !this.heard) throw new Refused((await response.text()).trim());
    if (!response.ok) throw new Error((await response.text()).trim() || `the server answers ${response.status}`);
    return response;
  }

  async json(path, query, signal) {
    return (await this.get(path + "?" + new URLSearchParams(query), signal)).json();
  }

  // events reads server-sent events until the stream ends. EventSource could not send the header.
  async events(path, on, signal) {
    const response = await this.get(path, signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let pieces = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      pieces.push(value);
      if (!value.includes("\n")) continue;
      const lines = pieces.join("").split("\n");
      pieces = [lines.pop()];
      for (const line of lines) if (line.startsWith("data:")) on(line.slice(5));
      else if (line.startsWith(":")) on(null);
    }
  }

  // follow reads events forever, and begins anew when the stream ends. A stream on which nothing came for too long has ended as well, whatever the network says.
  async follow(path, { event, state }) {
    let wait = 500;
    for (;;) {
      const cut = new AbortController();
      let timer;
      const alive = () => {
        clearTimeout(timer);
        timer = setTimeout(() => cut.abort(new Error("nothing was heard of the server")), 40_000);
      };
      try {
        alive();
        await this.events(path, (data) => {
          alive();
          wait = 500;
          this.heard = true;
          if (data !== null) event(JSON.parse(data));
        }, cut.signal);
        state("closed", "the server ended the connection");
      } catch (error) {
        if (error instanceof Refused) {
          state("refused", error.message);
          return;
        }
        state("closed", cut.signal.aborted ? String(cut.signal.reason?.message) : error.message);
      } finally {
        clearTimeout(timer);
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, 10_000);
    }
  }
}
