import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** The common part of the client programs in Java; see ../python/kit.py. */
final class Kit {
    interface Behaviour {
        void play() throws Exception;
    }

    private static final String SECONDS = System.getenv().getOrDefault("SECONDS", "20");
    static final long END_NS = System.nanoTime() + (long) (Double.parseDouble(SECONDS) * 1e9);

    private Kit() {}

    static boolean isOver() {
        return System.nanoTime() - END_NS >= 0;
    }

    /** Writes down who this is, for the doctor to find out by itself. */
    static void say(String library, String version) throws Exception {
        String file = System.getenv("IDENTITY");
        if (file != null) {
            String text = "{\"library\": \"" + library + "\", \"version\": \"" + version + "\"}";
            Files.writeString(Path.of(file), text);
        }
    }

    static Thread beside(Behaviour behaviour) {
        Thread thread = new Thread(() -> run(behaviour));
        thread.start();
        return thread;
    }

    static void main(Map<String, Behaviour> behaviours, String behaviour) {
        run(behaviours.get(behaviour));
        System.exit(0);
    }

    private static void run(Behaviour behaviour) {
        try {
            behaviour.play();
        } catch (Exception problem) {
            problem.printStackTrace();
            System.exit(1);
        }
    }
}
