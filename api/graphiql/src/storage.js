/**
 * A Storage that never keeps request headers. The history would otherwise write them, and with them
 * an x-api-key, to the browser's disk, whatever the setting for headers says.
 */
export function keylessStorage(storage) {
  return {
    get length() {
      return storage.length
    },
    getItem: key => storage.getItem(key),
    removeItem: key => storage.removeItem(key),
    clear: () => storage.clear(),
    setItem: (key, value) => storage.setItem(key, withoutHeaders(value)),
  }
}

function withoutHeaders(value) {
  if (!value.includes('"headers"')) return value
  try {
    return JSON.stringify(JSON.parse(value), (name, member) =>
      name === "headers" && typeof member === "string" ? undefined : member)
  } catch {
    return value
  }
}

/** The tab that was active at the last visit, if there was one. */
export function activeTab(storage) {
  try {
    const { tabs, activeTabIndex } = JSON.parse(storage.getItem("graphiql:tabState"))
    return tabs[activeTabIndex]
  } catch {
    return undefined
  }
}
