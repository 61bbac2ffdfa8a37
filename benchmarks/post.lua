-- For wrk: POST one body again and again, and say the outcome as one line of JSON.
-- BENCHMARK_BODY names the file of the body, BENCHMARK_HEADERS the headers, a line each. With BENCHMARK_PAUSE_MS each connection pauses by chance before each request, so long
-- on average.
local file = assert(io.open(assert(os.getenv("BENCHMARK_BODY")), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
for name, value in (os.getenv("BENCHMARK_HEADERS") or ""):gmatch("([^:\n]+): ([^\n]*)\n") do
  wrk.headers[name] = value
end

local pause = tonumber(os.getenv("BENCHMARK_PAUSE_MS") or "0")
if pause > 0 then
  -- wrk pauses for whole milliseconds: the fraction decides by chance, so that the mean is kept.
  function delay()
    return math.floor(-pause * math.log(1 - math.random()) + math.random())
  end
end

local LINE = '\noutcome {"requests": %d, "seconds": %.6f, "p50_us": %d, "p99_us": %d, "max_us": %d, '
  .. '"failures": {"status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}}\n'

function done(summary, latency)
  local e = summary.errors
  io.write(LINE:format(
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99), latency.max,
    e.status, e.connect, e.read, e.write, e.timeout))
end
