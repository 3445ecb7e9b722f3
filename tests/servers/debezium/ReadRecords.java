import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

/**
 * Reads records as a Kafka Connect sink does: JsonConverter, then Debezium's ExtractNewRecordState.
 *
 * The first argument is schemas.enable; the others are settings of the transformation as name=value. Each line of stdin
 * is a record {"topic", "key", "value"} in base64 or null; each line of stdout is what became of it.
 */
public final class ReadRecords {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final JsonConverter keys = new JsonConverter();
    private final JsonConverter values = new JsonConverter();
    private final ExtractNewRecordState<SinkRecord> transformation = new ExtractNewRecordState<>();

    private ReadRecords(String schemas, Map<String, String> settings) {
        keys.configure(Map.of("schemas.enable", schemas), true);
        values.configure(Map.of("schemas.enable", schemas), false);
        transformation.configure(settings);
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> settings = new LinkedHashMap<>();
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            String[] parts = argument.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        ReadRecords reader = new ReadRecords(arguments[0], settings);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            output.println(JSON.writeValueAsString(reader.read(JSON.readTree(line))));
        }
        output.flush();
    }

    private Map<String, Object> read(JsonNode record) throws Exception {
        String topic = record.get("topic").asText();
        SchemaAndValue key = keys.toConnectData(topic, record.get("key").binaryValue());
        SchemaAndValue value = values.toConnectData(topic, record.get("value").binaryValue());
        SinkRecord taken = new SinkRecord(topic, 0, key.schema(), key.value(), value.schema(), value.value(), 0);
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("converted", describe(taken)); // before the transformation, which adds headers to it
        SinkRecord extracted = transformation.apply(taken);
        seen.put("extracted", extracted == null ? null : describe(extracted));
        return seen;
    }

    private static Map<String, Object> describe(SinkRecord record) {
        Map<String, Object> headers = new LinkedHashMap<>();
        for (Header header : record.headers()) {
            headers.put(header.key(), plain(header.value()));
        }
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("key", plain(record.key()));
        described.put("key_types", types(record.keySchema()));
        described.put("value", plain(record.value()));
        described.put("value_types", types(record.valueSchema()));
        described.put("headers", headers);
        return described;
    }

    private static Object plain(Object value) {
        if (value instanceof Struct struct) {
            Map<String, Object> fields = new LinkedHashMap<>();
            for (Field field : struct.schema().fields()) {
                fields.put(field.name(), plain(struct.get(field)));
            }
            return fields;
        }
        if (value instanceof Map<?, ?> map) {
            Map<Object, Object> fields = new LinkedHashMap<>();
            map.forEach((name, each) -> fields.put(name, plain(each)));
            return fields;
        }
        if (value instanceof List<?> list) {
            List<Object> elements = new ArrayList<>();
            list.forEach(each -> elements.add(plain(each)));
            return elements;
        }
        return value;
    }

    /** The name of a logical type, else of the type; "?" for an optional one; a map of the fields for a struct. */
    private static Object types(Schema schema) {
        if (schema == null) {
            return null;
        }
        if (schema.type() == Schema.Type.STRUCT) {
            Map<String, Object> fields = new LinkedHashMap<>();
            for (Field field : schema.fields()) {
                fields.put(field.name(), types(field.schema()));
            }
            return fields;
        }
        String logical = schema.name() == null ? "" : " " + schema.name();
        return schema.type().getName() + logical + (schema.isOptional() ? "?" : "");
    }
}
