import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;

/** Sends requests as Java's own client does, which offers HTTP/2 with the first on each connection. */
class UpgradingClient {
    public static void main(String[] arguments) throws Exception {
        URI echo = URI.create(arguments[0] + "/predictions/echo");
        URI models = URI.create(arguments[1] + "/models?url=echo.mar&model_name=java&initial_workers=1&synchronous=true");
        HttpClient client = HttpClient.newHttpClient();

        show("known length", client.send(post(echo, BodyPublishers.ofString("one")), BodyHandlers.ofString()));
        show("same connection", client.send(post(echo, BodyPublishers.ofString("two")), BodyHandlers.ofString()));
        byte[] large = "x".repeat(3_000_000).getBytes(StandardCharsets.US_ASCII);
        HttpResponse<String> echoed = HttpClient.newHttpClient().send(
            post(echo, BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(large))), BodyHandlers.ofString());
        System.out.println("chunked: " + echoed.statusCode() + " " + echoed.version() + " " + echoed.body().length());
        show("no body", client.send(
            HttpRequest.newBuilder(URI.create(arguments[0] + "/ping")).build(), BodyHandlers.ofString()));
        HttpResponse<String> registered = HttpClient.newHttpClient().send(
            post(models, BodyPublishers.noBody()), BodyHandlers.ofString());
        System.out.println("management: " + registered.statusCode());
        HttpResponse<String> metrics = HttpClient.newHttpClient().send(
            HttpRequest.newBuilder(URI.create(arguments[2] + "/metrics")).build(), BodyHandlers.ofString());
        System.out.println("metrics: " + metrics.statusCode() + " " + metrics.body().contains("Requests2XX"));

        HttpClient fresh = HttpClient.newHttpClient();
        long right = IntStream.range(0, 200)
            .mapToObj(n -> fresh.sendAsync(post(echo, BodyPublishers.ofString("n" + n)), BodyHandlers.ofString())
                .thenApply(answer -> answer.body().equals("n" + n)))
            .toList().stream().filter(CompletableFuture::join).count();
        System.out.println("at once: " + right);
    }

    private static HttpRequest post(URI uri, BodyPublisher body) {
        return HttpRequest.newBuilder(uri).header("Content-Type", "text/plain").POST(body).build();
    }

    private static void show(String what, HttpResponse<String> answer) {
        System.out.println(what + ": " + answer.statusCode() + " " + answer.version() + " " + answer.body().strip());
    }
}
