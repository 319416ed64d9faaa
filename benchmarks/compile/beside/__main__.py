from benchmarks.compile.beside.run import main

if __name__ == "__main__":
    main()
