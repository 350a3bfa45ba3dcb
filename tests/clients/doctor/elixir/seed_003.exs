# A real Broadway as a blog post's authors had it: two producers, 25 processors with everything at
# its default (max_demand 10), a prefetch of 50, and jobs that come a few at a time. Processors get
# several jobs while others have none.
#
#   cloverleaf lab run --rtt 1ms -- elixir seed_003.exs
#
# `broadway`, `broadway_rabbitmq` and `amqp` must be on the code path (ERL_LIBS). SECONDS says for how
# long, JOBS how many jobs come at a time, JOB_MS how long one takes, PRODUCERS, MAX_DEMAND and
# MIN_DEMAND are what the doctor advises to change.

defmodule InternalJobs do
  use Broadway

  def start(queue, connection, job_ms) do
    producer =
      {BroadwayRabbitMQ.Producer,
       queue: queue,
       connection: connection,
       qos: [prefetch_count: 50],
       on_failure: :reject_and_requeue}

    Broadway.start_link(__MODULE__,
      name: __MODULE__,
      context: job_ms,
      producer: [module: producer, concurrency: Settings.number("PRODUCERS", 2)],
      processors: [
        default: [
          concurrency: 25,
          max_demand: Settings.number("MAX_DEMAND", 10),
          min_demand: Settings.number("MIN_DEMAND", 5)
        ]
      ]
    )
  end

  @impl true
  def handle_message(_processor, message, job_ms) do
    Process.sleep(job_ms)
    send(Process.whereis(:collector), :done)
    message
  end
end

defmodule Settings do
  def number(name, default) do
    String.to_integer(System.get_env(name, Integer.to_string(default)))
  end
end

defmodule Seed do
  @queue "internal_jobs"

  def play do
    Process.register(self(), :collector)
    Logger.configure(level: :error)
    {:ok, _} = Application.ensure_all_started(:broadway_rabbitmq)
    uri = System.fetch_env!("CLOVERLEAF_AMQP_URL")
    {:ok, connection} = AMQP.Connection.open(uri, name: "feeder")
    {:ok, channel} = AMQP.Channel.open(connection)
    AMQP.Queue.declare(channel, @queue, durable: true)
    job_ms = Settings.number("JOB_MS", 4000)
    jobs = Settings.number("JOBS", 2)
    {:ok, _} = InternalJobs.start(@queue, uri, job_ms)
    # Both producers consume, and all processors have asked.
    Process.sleep(1500)
    until = System.monotonic_time(:millisecond) + 1000 * Settings.number("SECONDS", 60)
    took = groups(channel, {jobs, job_ms}, until, [])
    mean = Enum.sum(took) / length(took)
    IO.puts("a group of #{jobs} jobs of #{job_ms} ms took #{round(mean)} ms on the mean")
  end

  defp groups(channel, {jobs, job_ms} = group, until, took) do
    start = System.monotonic_time(:millisecond)

    if start >= until do
      took
    else
      for _ <- 1..jobs, do: AMQP.Basic.publish(channel, "", @queue, "job")
      for _ <- 1..jobs, do: receive(do: (:done -> :ok))
      ms = System.monotonic_time(:millisecond) - start
      # As long again as one job: groups do not meet.
      Process.sleep(job_ms)
      groups(channel, group, until, [ms | took])
    end
  end
end

Seed.play()
