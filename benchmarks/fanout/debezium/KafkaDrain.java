import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Debezium's embedded engine with a Kafka producer: arguments are a number of events, then settings as name=value.
 *
 * Settings that begin with "producer." are the producer's. Each batch of the engine is sent, and is finished when all of
 * it is acknowledged. After so many events it prints one JSON object to stdout.
 */
public final class KafkaDrain implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private static final String PRODUCER = "producer.";
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final long expect;
    private final KafkaProducer<String, String> producer;
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private final double cpuAtStart = cpu();
    private long count;
    private long countAtFirst;
    private long countAtHalf;
    private double first;
    private double half;
    private double cpuAtHalf;

    private KafkaDrain(long expect, Properties settings) {
        this.expect = expect;
        this.producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        Properties ofProducer = new Properties();
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            String[] parts = argument.split("=", 2);
            if (parts[0].startsWith(PRODUCER)) {
                ofProducer.setProperty(parts[0].substring(PRODUCER.length()), parts[1]);
            } else {
                settings.setProperty(parts[0], parts[1]);
            }
        }
        DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(Json.class)
                        .using(settings)
                        .using((success, message, error) -> fail(message, error))
                        .notifying(new KafkaDrain(Long.parseLong(arguments[0]), ofProducer))
                        .build();
        new Thread(engine).start();
    }

    @Override
    public void handleBatch(
            List<ChangeEvent<String, String>> batch,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        for (ChangeEvent<String, String> event : batch) {
            ProducerRecord<String, String> record =
                    new ProducerRecord<>(event.destination(), event.key(), event.value());
            producer.send(record, (metadata, error) -> note(error));
        }
        producer.flush(); // waits for the acknowledgements, and does not wait for the linger
        if (failure.get() != null) {
            fail("a record was not acknowledged", failure.get());
        }
        committer.markProcessed(batch.get(batch.size() - 1)); // the last stands for all before it
        committer.markBatchFinished();
        tally(batch.size());
    }

    private void note(Exception error) {
        if (error != null) {
            failure.compareAndSet(null, error);
        }
    }

    private void tally(int size) {
        double now = now();
        count += size;
        if (countAtFirst == 0) {
            countAtFirst = count;
            first = now;
        }
        if (countAtHalf == 0 && count >= expect / 2) {
            countAtHalf = count;
            half = now;
            cpuAtHalf = cpu();
        }
        if (count >= expect) {
            answer(now, cpu());
        }
    }

    /** All is said: how long the engine takes to close is not what is measured. */
    private void answer(double last, double cpu) {
        System.out.println(String.format(
                Locale.ROOT,
                "{\"events\":%d,\"last_at\":%f,\"rate\":%f,\"second_half_rate\":%f,\"cpu\":%f,"
                        + "\"second_half_cpu_us\":%f,\"peak_mb\":%f}",
                count, last, (count - countAtFirst) / (last - first), (count - countAtHalf) / (last - half),
                cpu - cpuAtStart, (cpu - cpuAtHalf) / (count - countAtHalf) * 1e6, peakMegabytes()));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void fail(String message, Throwable error) {
        System.err.println("Debezium ended: " + message);
        if (error != null) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(1);
    }

    private static double now() {
        return ChronoUnit.NANOS.between(Instant.EPOCH, Instant.now()) / 1e9;
    }

    private static double cpu() {
        return PROCESS.getProcessCpuTime() / 1e9;
    }

    private static double peakMegabytes() {
        try {
            return Files.readAllLines(Path.of("/proc/self/status")).stream()
                    .filter(line -> line.startsWith("VmHWM:"))
                    .mapToDouble(line -> Double.parseDouble(line.replaceAll("\\D", "")) / 1024)
                    .findFirst()
                    .orElse(0);
        } catch (java.io.IOException error) {
            return 0;
        }
    }
}
