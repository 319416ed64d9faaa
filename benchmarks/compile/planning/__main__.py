from benchmarks.compile.planning.run import main

if __name__ == "__main__":
    main()
