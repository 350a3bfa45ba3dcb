import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/** The common part of the client programs in Java; see ../python/kit.py. */
final class Kit {
    interface Behaviour {
        void play() throws Exception;
    }

    /** A message of the usual size. */
    static final byte[] BODY = new byte[200];

    private static final String SECONDS = System.getenv().getOrDefault("SECONDS", "20");
    private static final long END_NS = System.nanoTime() + (long) (Double.parseDouble(SECONDS) * 1e9);
    private static final AtomicLong SEEN = new AtomicLong();

    private Kit() {}

    /** Calls act until the time is over, with a pause of some milliseconds after each call. */
    static void every(long ms, Behaviour act) throws Exception {
        while (System.nanoTime() - END_NS < 0) {
            act.play();
            Thread.sleep(ms);
        }
    }

    /** Counts messages that came. */
    static void saw(long messages) {
        SEEN.addAndGet(messages);
    }

    static void untilOverAndSeen() throws Exception {
        every(100, () -> {});
        if (SEEN.get() == 0) {
            throw new IllegalStateException("nothing came");
        }
    }

    static Thread beside(Behaviour behaviour) {
        Thread thread = new Thread(() -> run(behaviour));
        thread.start();
        return thread;
    }

    /**
     * Plays the behaviour. Writes library and version into IDENTITY, to be compared with what the
     * broker recognises.
     */
    static void main(String library, String version, Map<String, Behaviour> behaviours, String[] words)
            throws Exception {
        String file = System.getenv("IDENTITY");
        if (file != null) {
            String text = "{\"library\": \"" + library + "\", \"version\": \"" + version + "\"}";
            Files.writeString(Path.of(file), text);
        }
        run(behaviours.get(words[0]));
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
