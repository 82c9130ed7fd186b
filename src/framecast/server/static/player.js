// Clips side by side with one playhead.

export class Clip {
  // bytes of (T, H, W, C); `drawn`, where given, has a bit for each pixel of (T, H, W), the same for all samples.
  constructor(bytes, [length, height, width, channels], drawn = null) {
    Object.assign(this, { bytes, length, height, width, channels, drawn });
  }

  // Paints a frame; what is not drawn yet stays transparent.
  paint(canvas, frame) {
    if (canvas.width !== this.width || canvas.height !== this.height) {
      canvas.width = this.width;
      canvas.height = this.height;
    }
    const context = canvas.getContext("2d");
    if (frame >= this.length) {
      context.clearRect(0, 0, this.width, this.height);
      return;
    }
    const picture = context.createImageData(this.width, this.height);
    const pixels = this.height * this.width, first = frame * pixels;
    for (let i = 0; i < pixels; i++) {
      const from = (first + i) * this.channels;
      for (let c = 0; c < 3; c++) picture.data[4 * i + c] = this.bytes[from + (this.channels === 1 ? 0 : c)];
      const seen = !this.drawn || (this.drawn[(first + i) >> 3] >> (7 - ((first + i) & 7))) & 1;
      picture.data[4 * i + 3] = seen ? 255 : 0;
    }
    context.putImageData(picture, 0, 0);
  }

  // The first frame that is not wholly drawn, or the last.
  underWay() {
    const pixels = this.height * this.width;
    for (let i = 0; this.drawn && i < this.length * pixels; i++)
      if (!((this.drawn[i >> 3] >> (7 - (i & 7))) & 1)) return Math.floor(i / pixels);
    return this.length - 1;
  }
}

export class Player {
  constructor(root, onFrame) {
    this.root = root;
    this.pictures = root.querySelector("#pictures");
    this.button = root.querySelector("#play");
    this.slider = root.querySelector("#frame");
    this.onFrame = onFrame;
    this.views = [];
    this.frame = 0;
    this.touched = false;
    this.button.addEventListener("click", () => this.play(!this.timer, true));
    this.slider.addEventListener("input", () => {
      this.play(false, true);
      this.show(Number(this.slider.value));
    });
  }

  // Empty places for clips of these titles.
  open(titles, length) {
    this.play(false);
    this.touched = false;
    this.length = length;
    this.slider.max = length - 1;
    this.views = titles.map((title) => {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption");
      const canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      caption.textContent = title;
      figure.append(canvas, caption);
      return { title, figure, canvas, clip: null };
    });
    this.pictures.replaceChildren(...this.views.map((view) => view.figure));
    this.show(0);
  }

  put(place, clip) {
    this.views[place].clip = clip;
    clip.paint(this.views[place].canvas, this.frame);
  }

  show(frame) {
    this.frame = frame;
    this.slider.value = frame;
    for (const { title, canvas, clip } of this.views) {
      if (clip) clip.paint(canvas, frame);
      canvas.setAttribute("aria-label", `${title}, frame ${frame}`);
    }
    this.slider.setAttribute("aria-valuetext", this.onFrame(frame));
  }

  play(on, touched = false) {
    this.touched ||= touched;
    clearInterval(this.timer);
    this.timer = on ? setInterval(() => this.show((this.frame + 1) % this.length), 100) : null;
    this.button.textContent = on ? "Pause" : "Play";
    this.button.setAttribute("aria-pressed", String(on));
  }
}
