import com.sun.management.OperatingSystemMXBean;
import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's embedded engine as a reader: arguments are a number of events, then settings as name=value.
 *
 * With a number it counts until it has seen so many and answers how long that took; with 0 it notes how late each event
 * is until stdin ends. It answers with one JSON object on stdout.
 */
public final class Drain implements DebeziumEngine.ChangeConsumer<RecordChangeEvent<SourceRecord>> {
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final long expect;
    private final StringBuilder lateMicros = new StringBuilder();
    private final double cpuAtStart = cpu();
    private long count;
    private long countAtFirst;
    private long countAtHalf;
    private double first;
    private double half;
    private double cpuAtFirst;
    private double cpuAtHalf;

    private Drain(long expect) {
        this.expect = expect;
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            String[] parts = argument.split("=", 2);
            settings.setProperty(parts[0], parts[1]);
        }
        Drain drain = new Drain(Long.parseLong(arguments[0]));
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine =
                DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                        .using(settings)
                        .using((success, message, error) -> fail(message, error))
                        .notifying(drain)
                        .build();
        new Thread(engine).start();
        if (drain.expect == 0) {
            System.in.readAllBytes();
            drain.answerLateness();
        }
    }

    @Override
    public void handleBatch(
            List<RecordChangeEvent<SourceRecord>> batch,
            DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer)
            throws InterruptedException {
        if (expect == 0) {
            note(batch);
        } else {
            tally(batch.size());
        }
        committer.markProcessed(batch.get(batch.size() - 1)); // the last stands for all before it
        committer.markBatchFinished();
    }

    private synchronized void note(List<RecordChangeEvent<SourceRecord>> batch) {
        for (RecordChangeEvent<SourceRecord> event : batch) {
            long committed = ((Struct) event.record().value()).getStruct("source").getInt64("ts_us");
            long now = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
            lateMicros.append(lateMicros.length() == 0 ? "" : ",").append(now - committed);
        }
    }

    private void tally(int size) {
        double now = now();
        count += size;
        if (countAtFirst == 0) {
            countAtFirst = count;
            first = now;
            cpuAtFirst = cpu();
        }
        if (countAtHalf == 0 && count >= expect / 2) {
            countAtHalf = count;
            half = now;
            cpuAtHalf = cpu();
        }
        if (count >= expect) {
            answerCount(now, cpu());
        }
    }

    private void answerCount(double last, double cpu) {
        answer(
                "{\"events\":%d,\"first_at\":%f,\"last_at\":%f,\"rate\":%f,\"second_half_rate\":%f,\"cpu\":%f,"
                        + "\"cpu_from_first\":%f,\"second_half_cpu_us\":%f,\"peak_mb\":%f}",
                count, first, last, (count - countAtFirst) / (last - first), (count - countAtHalf) / (last - half),
                cpu - cpuAtStart, cpu - cpuAtFirst, (cpu - cpuAtHalf) / (count - countAtHalf) * 1e6, peakMegabytes());
    }

    private synchronized void answerLateness() {
        answer("{\"late_us\":[%s],\"peak_mb\":%f}", lateMicros, peakMegabytes());
    }

    /** All is said: how long the engine takes to close is not what is measured. */
    private static void answer(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
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
