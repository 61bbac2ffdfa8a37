// Made by docs/console_runbook.py from docs/runbook.md.

export const PARAGRAPHS = {
 "modelserverdown": [
  "ModelserverDown",
  "Prometheus could not read the metrics of a server for a minute: its process has ended or is still starting, or the network fails. Look at the supervisor (`systemctl status`, `kubectl describe pod`) and the end of `logs/ts_log.log`; exit status 137 or `OOMKilled` means that the system ended it for lack of memory. A start that fails prints the setting or port that stops it. A server restores its models from the last snapshot."
 ],
 "modelservererrors": [
  "ModelserverErrors",
  "More than one request in a hundred was answered with a status of 500 or more. `GET /models/NAME` counts them by type under `errors`, with the last one's message and request id; the paragraph of its type says more, and the log has the handler's traceback under that request id. If the errors began with a new version, go back to the previous one: a change of weights takes effect at once."
 ],
 "modelserverfailing": [
  "ModelserverFailing",
  "All of the last batches of a model failed: the cause is not a few bad inputs, but the model or something on which it depends. `GET /models/NAME` has the last error. Often it is something that the handler reaches over the network, a full disk, or a GPU that needs a reset. Clients of KServe's and Triton's APIs see the model as not ready meanwhile. Once the cause is removed, the next batch that succeeds ends this state. A handler whose own state is broken needs new workers: register the same archive again (replacing)."
 ],
 "modelservernoworker": [
  "ModelserverNoWorker",
  "A model should have workers, and none is ready: requests get 503. `workers` of `GET /models/NAME` has each one's `failure`, the loads that failed and the `nextTry`. A file that is missing, a package that is not installed or a device that is full are the usual causes; the worker's own output is in `logs/model_log.log`. The server tries again automatically, less and less often. Once the cause is removed, scale to 0 and back (`PUT /models/NAME?min_worker=0&max_worker=0`, then `?min_worker=1`) to try at once."
 ],
 "modelserverworkersfail": [
  "ModelserverWorkersFail",
  "Some workers were given up: they did not load within the retry time, or ended again and again. The other workers continue to serve, with less capacity. Their `failure` in `GET /models/NAME` has the reason; with GPUs, check whether one device is full or broken. As for ModelserverNoWorker, scaling to 0 and back, or to the same number again, starts new ones."
 ],
 "modelserverloadsfail": [
  "ModelserverLoadsFail",
  "A model on demand failed to load three times in 15 minutes. Its requests get the reason with 503, or 507 if it needs more memory than there is, until the next try. `parking.failure` of `GET /models/NAME` has the reason too, and `GET /events?model=NAME` each failure. If memory is missing, unregister other models or raise `max_models_memory` (`PUT /parking`, without a restart). For all other reasons see ModelserverNoWorker."
 ],
 "modelserverrefuses": [
  "ModelserverRefuses",
  "Requests get 503 (429 from OpenAI's API) because the queue is full, or for the reason in the label. If the queue is full, clients send more than the workers can process: see `pendingRequests` of `GET /models/NAME`, and the throughput in the console. Add workers, raise the batch size (tuning measures it), or let autoscaling do it; a longer queue (`job_queue_size`) only helps against short bursts, as all requests then wait longer. For the reason `no_worker` see ModelserverNoWorker; `memory` means that bodies fill `max_incoming_bytes`."
 ],
 "modelserverqueueslow": [
  "ModelserverQueueSlow",
  "One request in twenty waits for more than a second until its batch starts. This alert comes before ModelserverRefuses, and the same measures help. If the workers are idle meanwhile, the batch delay is too long (batching)."
 ],
 "modelserverwantsworkers": [
  "ModelserverWantsWorkers",
  "Autoscaling has wanted more workers than there are for ten minutes. `autoscaling` of `GET /models/NAME` and the events say why: `max_workers` is reached, memory is short, or new workers do not load."
 ],
 "modelserverdeadlines": [
  "ModelserverDeadlines",
  "Requests pass their deadline before their answer is there, and get 504. Either they wait too long (see ModelserverQueueSlow) or the handler takes longer than the deadline allows: compare `queue` and `handler` in the `Server-Timing` header of an answer."
 ],
 "modelservermemory": [
  "ModelserverMemory",
  "More than 90 % of the machine's memory is used; the system may end a worker soon. `memoryUsage` of each worker shows how much it uses. A worker that grows can be limited by `max_worker_memory` or `max_worker_requests` (recycling); many models share memory by `load=on-demand` (many models)."
 ],
 "modelserverdisk": [
  "ModelserverDisk",
  "More than 90 % of the disk is used. Logs rotate by themselves; downloads of models are bounded by `download_cache_size`, environments and compiled networks are in `$MODELSERVER_CACHE`. With a full disk the server continues to answer requests, but snapshots, new models and access logs fail."
 ],
 "not-restored": [
  "Not restored",
  "A model of the snapshot could not be registered again: its archive is missing or broken. It is shown as `FAILED` until it is registered or unregistered."
 ],
 "not-replaced": [
  "Not replaced",
  "A new archive of a running model could not be loaded, and the old one continues to serve. `replacement` of `GET /models/NAME` has the reason."
 ],
 "cannot-load-on-demand": [
  "Cannot load on demand",
  "The last load of a model on demand failed: its requests get the reason until the next try (many models)."
 ],
 "last-errors": [
  "Last errors",
  "The model answered some requests of the last hour with errors, fewer than the alert ModelserverErrors requires; its paragraph applies."
 ],
 "certificate": [
  "Certificate",
  "The certificate of the management address ends within 14 days, or has ended. Write the new one to the same files: the server uses it within two seconds, without a restart (security)."
 ],
 "badrequestexception": [
  "BadRequestException",
  "400. The request cannot be read: its JSON, encoding, a parameter, or an input that the handler refuses. The message names the place. There is nothing to do on the server; if the errors began with a new version, the model's inputs have changed."
 ],
 "invalidmodelexception": [
  "InvalidModelException",
  "400 of a registration. The archive, its manifest or `model-config.yaml` cannot be served; the message names file and key. `modelserver check` finds such errors before the registration."
 ],
 "downloadarchiveexception": [
  "DownloadArchiveException",
  "400 of a registration. The archive's URL cannot be downloaded: it is not in `allowed_urls`, does not exist, or credentials are missing (object stores)."
 ],
 "modelexception": [
  "ModelException",
  "400 of a registration or of scaling. The packages of the model could not be installed; the message has pip's last lines."
 ],
 "invalidmodelversionexception": [
  "InvalidModelVersionException",
  "403. The default version cannot be unregistered while there are others: make another one the default first."
 ],
 "modelnotfoundexception": [
  "ModelNotFoundException",
  "404. No model has this name; the message names the nearest ones. It was never registered, was unregistered, or could not be loaded at the start: see the events."
 ],
 "modelversionnotfoundexception": [
  "ModelVersionNotFoundException",
  "404. The model exists, the version does not: clients that name a version must change before it is unregistered."
 ],
 "resourcenotfoundexception": [
  "ResourceNotFoundException",
  "404. No such path; often the wrong port: registrations go to the management address."
 ],
 "methodnotallowedexception": [
  "MethodNotAllowedException",
  "405. The path exists, but not with this method; the `Allow` header lists the methods that it has."
 ],
 "conflictstatusexception": [
  "ConflictStatusException",
  "409. The name and version are already registered, or a change of the same model has not ended."
 ],
 "requestentitytoolargeexception": [
  "RequestEntityTooLargeException",
  "413. The body is larger than `max_request_size`, or has more parts than allowed."
 ],
 "unsupportedmediatypeexception": [
  "UnsupportedMediaTypeException",
  "415. The `Content-Encoding` is none that the server reads: it knows `gzip` and `deflate`."
 ],
 "invalidkeyexception": [
  "InvalidKeyException",
  "400, as in TorchServe. The token is missing, wrong or has ended: inference and management have different ones (tokens). After a renewal, clients need the new one of the key file."
 ],
 "foreignhostexception": [
  "ForeignHostException",
  "403. The `Host` header is a name that the management address does not know: add it to `management_hosts`, if it is yours."
 ],
 "foreignoriginexception": [
  "ForeignOriginException",
  "403. A page of another origin tried to change something: add the origin to the CORS settings, if it is yours."
 ],
 "invalidworkflowexception": [
  "InvalidWorkflowException",
  "400 of a workflow's registration: its archive, manifest or specification cannot be served; the message names the place."
 ],
 "invaliddagexception": [
  "InvalidDAGException",
  "400 of a workflow's registration: the graph of its specification has a circle, or names a node that does not exist."
 ],
 "workflownotfoundexception": [
  "WorkflowNotFoundException",
  "404. No workflow has this name; `GET /workflows` lists them."
 ],
 "workflowexception": [
  "WorkflowException",
  "500 of a workflow's registration: one of its models could not be registered; the message has the reason, and none of its models stays registered."
 ],
 "notimplementedexception": [
  "NotImplementedException",
  "501. A transfer coding besides `chunked`: a proxy in front of the server may be able to remove it."
 ],
 "httpversionnotsupportedexception": [
  "HttpVersionNotSupportedException",
  "505. The client speaks a version of HTTP that the server does not: it speaks 1.0, 1.1, and HTTP/2 for gRPC."
 ],
 "serviceunavailableexception": [
  "ServiceUnavailableException",
  "503, with `Retry-After`. No worker can serve the model right now, the queue is full, or the server stops; the message has the reason. See ModelserverRefuses and ModelserverNoWorker."
 ],
 "requesttimeoutexception": [
  "RequestTimeoutException",
  "504. The deadline of the request passed. See ModelserverDeadlines."
 ],
 "predictionexception": [
  "PredictionException",
  "500 with a message of the handler itself, which raised `PredictionException`: its meaning is up to the handler."
 ],
 "internalserverexception": [
  "InternalServerException",
  "500, or 507 without memory. The handler raised an exception, or its worker ended: the message is `Worker died.` or the handler's, if `expose_errors` allows it. `errors` of `GET /models/NAME` has the cause and the place in the handler's code, the log the traceback. With 507 a batch or a load did not fit into the memory of the machine or GPU: use smaller batches, or fewer workers for a device."
 ]
};
