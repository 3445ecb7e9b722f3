import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Properties;

/**
 * Debezium's connector in its embedded engine: prints what it would send, as JSON with schemas.
 *
 * Arguments are a number of records, then settings as name=value. Each record is two lines: key and value; the value of a
 * tombstone is "null". It ends after so many records.
 */
public final class CaptureChanges implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private final PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private long expect;

    private CaptureChanges(long expect) {
        this.expect = expect;
    }

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            String[] parts = argument.split("=", 2);
            settings.setProperty(parts[0], parts[1]);
        }
        DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(Json.class)
                        .using(settings)
                        .using((success, message, error) -> fail(message, error))
                        .notifying(new CaptureChanges(Long.parseLong(arguments[0])))
                        .build();
        new Thread(engine).start();
    }

    @Override
    public void handleBatch(
            List<ChangeEvent<String, String>> batch,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        for (ChangeEvent<String, String> event : batch) {
            output.println(event.key());
            output.println(event.value());
            committer.markProcessed(event);
            if (--expect == 0) {
                output.flush();
                Runtime.getRuntime().halt(0);
            }
        }
        committer.markBatchFinished();
    }

    private static void fail(String message, Throwable error) {
        System.err.println("Debezium ended: " + message);
        if (error != null) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(1);
    }
}
