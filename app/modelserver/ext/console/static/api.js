// Requests to the server that this page came from. The token lives in this module only.

const ROOT = new URL("../../", import.meta.url);
let token = "";

export class TokenRefused extends Error {}

export function setToken(text) {
  token = text;
}

export const hasToken = () => token !== "";

export async function call(path, { method = "GET", headers = {}, body, signal } = {}) {
  const sent = token ? { ...headers, authorization: `Bearer ${token}` } : headers;
  const response = await fetch(new URL(path, ROOT), {
    method, headers: sent, body, signal, cache: "no-store", credentials: "omit", redirect: "error",
  });
  // The server's own refusal; a model may answer 400 as well.
  if (response.status === 400 && !response.headers.has("x-console-try")) {
    const told = await response.clone().json().catch(() => ({}));
    if (told.type === "InvalidKeyException") throw new TokenRefused(told.message);
  }
  return response;
}

// The parsed answer. Throws an Error with the server's message if it refuses.
export async function json(path, options) {
  const response = await call(path, options);
  const told = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(told.message ?? `${response.status} ${response.statusText}`);
  return told;
}

export const addressOf = (path) => String(new URL(path, ROOT));

export const pathOf = (facts) =>
  `models/${encodeURIComponent(facts.modelName)}/${encodeURIComponent(facts.modelVersion)}`;
