import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** What the doctor's patients in Java share; see ../python/kit.py. */
final class Kit {
    interface Story {
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
        String folder = System.getenv("SAYS");
        if (folder != null) {
            String text = "{\"library\": \"" + library + "\", \"version\": \"" + version + "\"}";
            Files.writeString(Path.of(folder, System.getenv("PATIENT")), text);
        }
    }

    static Thread beside(Story story) {
        Thread thread = new Thread(() -> run(story));
        thread.start();
        return thread;
    }

    static void main(Map<String, Story> stories, String story) {
        run(stories.get(story));
        System.exit(0);
    }

    private static void run(Story story) {
        try {
            story.play();
        } catch (Exception problem) {
            problem.printStackTrace();
            System.exit(1);
        }
    }
}
