// The 8 x 8 drawing: with a pointer (a soft brush), or with arrow keys and space.
import {el, unique, button} from "../../tools.js";
import {colours} from "./picture.js";

const SIDE = 8;
const SIZE = 320; // pixels of the canvas; the page scales it
const CELL = SIZE / SIDE;

const inPart = {
  all: () => true,
  top: (row) => row < SIDE / 2,
  bottom: (row) => row >= SIDE / 2,
  left: (row, column) => column < SIDE / 2,
  right: (row, column) => column >= SIDE / 2,
};

export class Pad {
  #values = new Float64Array(SIDE * SIDE);
  #part = "all";
  #cursor = [2, 3];
  #down = false;
  #erase = false;

  constructor({onChange}) {
    this.onChange = onChange;
    const help = unique("pad-help");
    this.canvas = el("canvas", {
      class: "pad", width: SIZE, height: SIZE, tabindex: 0, role: "application", "aria-label": "Drawing of 8 by 8 cells",
      "aria-roledescription": "drawing", "aria-describedby": help,
    });
    this.where = el("p", {class: "visually-hidden", "aria-live": "polite"});
    this.node = el("div", {class: "pad-box"}, this.canvas, this.where,
      el("p", {class: "hint", id: help}, "Draw with a pointer, or with the keyboard: arrow keys move, space paints, backspace erases. Hatched cells are hidden from the models."));
    this.eraser = button("Eraser", () => this.#switch(), {"aria-pressed": "false"});
    this.canvas.addEventListener("pointerdown", (event) => this.#start(event));
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, () => { this.#down = false; });
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    for (const name of ["focus", "blur"]) this.canvas.addEventListener(name, () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.draw();
  }

  get values() { return [...this.#values]; }
  set values(wanted) { this.#values = Float64Array.from(wanted); this.draw(); }
  set part(name) { this.#part = name; this.draw(); }
  /** Whether the visible part of the drawing is empty. */
  get empty() { return this.#values.every((value, i) => value === 0 || !this.#seen(i)); }

  clear() { this.#values.fill(0); this.draw(); this.onChange(); }

  #seen(i) { return inPart[this.#part](Math.floor(i / SIDE), i % SIDE); }

  #switch() {
    this.#erase = !this.#erase;
    this.eraser.setAttribute("aria-pressed", String(this.#erase));
  }

  #start(event) {
    if (event.button > 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.#down = true;
    this.#move(event);
  }

  #move(event) {
    if (!this.#down) return;
    const box = this.canvas.getBoundingClientRect();
    // All positions since the last event, so that a quick stroke has no gaps.
    const all = event.getCoalescedEvents?.() ?? [];
    for (const {clientX, clientY} of all.length ? all : [event]) {
      this.#brush(SIDE * (clientX - box.left) / box.width, SIDE * (clientY - box.top) / box.height);
    }
    this.draw();
    this.onChange();
  }

  /** Full at the centre of the stroke, fading over a pixel, as in the data set. */
  #brush(x, y) {
    for (let i = 0; i < SIDE * SIDE; i++) {
      const distance = Math.hypot(i % SIDE + 0.5 - x, Math.floor(i / SIDE) + 0.5 - y);
      const ink = Math.max(0, Math.min(1, 1.3 - distance));
      if (!ink || !this.#seen(i)) continue;
      this.#values[i] = this.#erase ? Math.min(this.#values[i], 1 - ink) : Math.max(this.#values[i], ink);
    }
  }

  #key(event) {
    const move = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    const paint = {" ": 1, Enter: 1, Backspace: 0, Delete: 0}[event.key];
    if (!move && paint === undefined) return;
    event.preventDefault();
    if (move) this.#cursor = this.#cursor.map((at, axis) => Math.min(SIDE - 1, Math.max(0, at + move[axis])));
    const [row, column] = this.#cursor, i = row * SIDE + column;
    if (paint !== undefined && this.#seen(i)) {
      this.#values[i] = this.#erase ? 0 : paint;
      this.onChange();
    }
    const state = !this.#seen(i) ? "hidden" : this.#values[i] > 0.5 ? "painted" : "blank";
    this.where.textContent = `Row ${row + 1}, column ${column + 1}: ${state}.`;
    this.draw();
  }

  draw() {
    const pen = this.canvas.getContext("2d"), {mix, line, accent} = colours();
    for (let i = 0; i < SIDE * SIDE; i++) {
      const x = (i % SIDE) * CELL, y = Math.floor(i / SIDE) * CELL, seen = this.#seen(i);
      pen.globalAlpha = 1;
      pen.fillStyle = mix(0);
      pen.fillRect(x, y, CELL, CELL);
      pen.globalAlpha = seen ? 1 : 0.3;
      pen.fillStyle = mix(this.#values[i]);
      pen.fillRect(x, y, CELL, CELL);
      pen.globalAlpha = 1;
      pen.strokeStyle = line;
      pen.lineWidth = 1;
      pen.strokeRect(x + 0.5, y + 0.5, CELL, CELL);
      if (!seen) {
        pen.beginPath();
        for (let at = 0; at < 2 * CELL; at += CELL / 2) {
          pen.moveTo(x + Math.max(0, at - CELL), y + Math.min(at, CELL));
          pen.lineTo(x + Math.min(at, CELL), y + Math.max(0, at - CELL));
        }
        pen.stroke();
      }
    }
    if (document.activeElement === this.canvas) {
      pen.strokeStyle = accent;
      pen.lineWidth = 4;
      pen.strokeRect(this.#cursor[1] * CELL + 3, this.#cursor[0] * CELL + 3, CELL - 6, CELL - 6);
    }
  }
}
