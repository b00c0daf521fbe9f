#!/usr/bin/python3
"""Looks at the page of a server in headless Chromium, over its debugging pipe.

dashboard.py URL PROFILE [FOLDER]    FOLDER takes screenshots
"""
import base64
import json
import os
import subprocess
import sys
import time

CHECK = """
(() => {
  const found = [];
  const text = id => document.getElementById(id).textContent;
  if (text("link") !== "live") found.push(`the link is ${text("link")}`);
  if (!/^5 volumes, [0-9.]+[KM] dirty, process [0-9]+$/.test(text("summary")))
    found.push(`the summary is ${text("summary")}`);
  if (!/^Not served: gone /.test(text("missing"))) found.push("a volume that is missing is not named");
  const cards = [...document.querySelectorAll("#volumes article")];
  const names = cards.map(card => card.querySelector("h3").textContent);
  if (names.join() !== "<img-src=x>,p,t,top,vm") found.push(`the volumes are ${names}`);
  const vm = cards.at(-1);
  const captions = [...vm.querySelectorAll("figcaption")].map(it => it.textContent.split(":")[0]);
  if (captions.join() !== "Requests/s,Bytes,99 of 100 within,Dirty,Writeback")
    found.push(`the curves of vm are ${captions}`);
  for (const line of vm.querySelectorAll("path.second"))
    if (line.getAttribute("d").split("h").length < 3) found.push("a curve has no points");
  const written = vm.querySelector("figcaption").textContent.match(/writes ([0-9]+)/);
  if (!written) found.push("vm has no figure of writes");
  const fills = document.querySelectorAll("meter");
  if (fills.length !== 2) found.push(`${fills.length} meters, expected data and metadata of p`);
  for (const meter of fills)
    if (!(meter.value > 0 && meter.value < 100)) found.push(`a meter is at ${meter.value}`);
  const tops = [...document.querySelectorAll("#stack > li > .name")].map(it => it.textContent);
  if (tops.join() !== "<img-src=x>,top,vm") found.push(`the stack begins with ${tops}`);
  const below = document.querySelector("#stack > li:nth-child(2)").textContent;
  if (!/top.*t .*p /.test(below)) found.push(`below top is ${below}`);
  if (document.querySelector("#volumes img, #stack img")) found.push("a name became an element");
  const events = [...document.querySelectorAll("#events tr")].map(it => it.textContent);
  if (!events.some(event => /top(suspended|resumed)$/.test(event))) found.push(`events: ${events}`);
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is too wide");
  for (const svg of document.querySelectorAll("svg"))
    if (!svg.getAttribute("aria-label")) found.push("a curve has no name");
  return found;
})()
"""


class Browser:
    """One page, and what it logged."""

    def __init__(self, profile):
        to_read, to_write = os.pipe(), os.pipe()
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                   "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        give = ["bash", "-c", f'exec 3<&{to_write[0]} 4>&{to_read[1]}; exec "$@"', "-"]
        self.process = subprocess.Popen(give + command, stderr=subprocess.DEVNULL,
                                        pass_fds=(to_write[0], to_read[1]))
        os.close(to_write[0])
        os.close(to_read[1])
        self.reader, self.writer = os.fdopen(to_read[0], "rb"), os.fdopen(to_write[1], "wb")
        self.number, self.pending, self.said, self.session = 0, b"", [], None
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.writer.write(json.dumps(message).encode() + b"\0")
        self.writer.flush()
        while True:
            answer = self.next()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.said.append(answer)

    def next(self):
        while b"\0" not in self.pending:
            piece = self.reader.read1(1 << 16)
            if not piece:
                sys.exit("the browser ended")
            self.pending += piece
        message, self.pending = self.pending.split(b"\0", 1)
        return json.loads(message)

    def value(self, expression):
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            sys.exit(f"the check failed: {found['exceptionDetails']}")
        return found["result"]["value"]

    def faults(self, url):
        """What the page logged, and what it asked of others."""
        found = []
        for message in self.said:
            params = message.get("params", {})
            if message.get("method") == "Log.entryAdded" and "favicon" not in str(params):
                found.append(f"log: {params['entry']['text']}")
            if message.get("method") == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails']}")
            if message.get("method") == "Network.requestWillBeSent":
                asked = params["request"]["url"]
                if not asked.startswith(url):
                    found.append(f"asks for {asked}")
        return found


def main():
    url, profile, pictures = (sys.argv + [""])[1:4]
    browser, status = Browser(profile), 0
    for scheme in ["light", "dark"]:
        for width in [1280, 720, 400]:
            browser.said.clear()
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.ask("Emulation.setEmulatedMedia", features=[feature])
            browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=1800,
                        deviceScaleFactor=1, mobile=False)
            browser.ask("Page.navigate", url=url)
            # A few samples, and a suspend of the script that called this.
            found, until = ["nothing was drawn"], time.monotonic() + 60
            while found and time.monotonic() < until:
                time.sleep(0.5)
                if browser.value("document.querySelector('#events tr') !== null"):
                    found = browser.value(CHECK)
            found += browser.faults(url)
            for line in found:
                print(f"{scheme}, {width} pixels: {line}")
                status = 1
            if pictures:
                shot = browser.ask("Page.captureScreenshot", format="png")
                with open(f"{pictures}/{scheme}-{width}.png", "wb") as file:
                    file.write(base64.b64decode(shot["data"]))
    browser.ask("Browser.close")
    browser.process.wait()
    sys.exit(status)


main()
