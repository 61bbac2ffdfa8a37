// Figures as texts.

export const shown = (value, unit) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (unit === "ms" && value >= 1e3) return shown(value / 1e3, "s");
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  const text = value === 0 ? "0" : value.toFixed(digits);
  return unit ? `${text} ${unit}`.replace(" /s", "/s").replace(" %", "%") : text;
};

export const errorText = (rate) => `${shown(rate, "")} errors/s`;
