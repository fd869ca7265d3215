// Reads server-sent events from fetch. EventSource cannot send the API key.

const KEY = "inflight-api-key";

export function saveKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export function withKey(headers) {
  const key = sessionStorage.getItem(KEY);
  return key === null ? headers : { ...headers, Authorization: `Bearer ${key}` };
}

/** What an answer that is no stream says, in the gateway's form of errors. */
export async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the gateway answered ${response.status}`;
  }
}

/** The data of each event, as text. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      for (const line of part.split("\n")) {
        if (line.startsWith("data: ")) yield line.slice(6);
      }
    }
  }
}
